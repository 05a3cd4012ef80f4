#pragma once
// What cuDNN has compiled for attention on the GPU.
//
// A caller owns one table per GPU and points Context::attention_engines to it; without one, ops
// with an automatic implementation run our own kernels. The first call of a shape asks cuDNN's
// heuristic and compiles, once; later calls find the engine here and compile nothing. What cuDNN
// answers is a function of shape, strides, library version and GPU, so that ranks with equal
// hardware agree without talking.
//
// to_strings() goes into a run's records and load() brings it back, so that a resumed run asks for
// the same kernels by number and knobs. One string an entry, in a fixed order, strides of operands
// between sequences, tokens and heads; "own" where cuDNN had none and our own kernels computed:
//   "forward b=8 t=4096 h=16 kv=8 e=128 doc=4096 q=16777216,4096,128 k=... v=... out=... dout=0,0,0
//    dq=0,0,0 dk=0,0,0 dv=0,0,0 cudnn=91400 engine=5 knobs=0:1,7:3"
//
// Threads  one table is used by one thread at a time.
// Errors  kUsage naming the entry: load() for one that is malformed or there twice; attention for
//         one that was stored by another version of cuDNN or that cuDNN refuses.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace k25::kernels {

enum class AttentionDirection : std::uint8_t { kForward, kBackward };

/// Of one call of cuDNN. Absent operands have strides 0.
struct AttentionEngineKey {
  using Strides = std::array<std::int64_t, 3>;  ///< between sequences, tokens and heads

  AttentionDirection direction = AttentionDirection::kForward;
  std::int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t document_stride = 0;  ///< between sequences; 0: each is one document
  Strides q{}, k{}, v{}, out{}, dout{}, dq{}, dk{}, dv{};

  friend auto operator<=>(const AttentionEngineKey&, const AttentionEngineKey&) = default;
};

/// One of cuDNN's kernels for a graph of operations.
struct CudnnEngine {
  std::int64_t index = 0;                                    ///< its number for this graph
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;  ///< type and value

  friend bool operator==(const CudnnEngine&, const CudnnEngine&) = default;
};

struct AttentionEngineChoice {
  std::uint64_t library = 0;          ///< cudnnGetVersion() of who chose it
  std::optional<CudnnEngine> engine;  ///< absent: cuDNN has none, our own kernels compute

  friend bool operator==(const AttentionEngineChoice&, const AttentionEngineChoice&) = default;
};

/// Private to the CUDA build: a compiled engine.
struct AttentionEngine;

class AttentionEngines {
 public:
  AttentionEngines() = default;
  AttentionEngines(const AttentionEngines&) = delete;
  AttentionEngines& operator=(const AttentionEngines&) = delete;

  /// Shapes that were asked for or loaded, those included that cuDNN refused.
  std::size_t size() const { return choices_.size(); }
  std::vector<std::string> to_strings() const;
  /// Adds to an empty table, or to one that has none of the entries.
  void load(std::span<const std::string> entries);

 private:
  friend class AttentionEngineAccess;  // attention_cudnn.cpp

  std::map<AttentionEngineKey, AttentionEngineChoice> choices_;
  std::map<AttentionEngineKey, std::shared_ptr<const AttentionEngine>> engines_;
};

/// The entry's string, as in to_strings().
std::string attention_engine_string(const AttentionEngineKey& key,
                                    const AttentionEngineChoice& choice);

}  // namespace k25::kernels
