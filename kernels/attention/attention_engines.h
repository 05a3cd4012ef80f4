#pragma once
// What cuDNN has compiled for attention on the GPU.
//
// A caller owns one table per GPU and points Context::attention_engines to it; without one, ops
// with an automatic implementation run our own kernels. The first call of a shape asks cuDNN's
// heuristic and compiles, once; later calls find the engine here and compile nothing. What cuDNN
// answers is a function of shape, strides, library version and GPU, so that ranks with equal
// hardware agree without talking.
//
// Threads  one table is used by one thread at a time.

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>

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

/// Private to the CUDA build.
struct AttentionEngine;

class AttentionEngines {
 public:
  AttentionEngines() = default;
  AttentionEngines(const AttentionEngines&) = delete;
  AttentionEngines& operator=(const AttentionEngines&) = delete;

  /// Shapes that were asked for, those included that cuDNN refused.
  std::size_t size() const { return engines_.size(); }

 private:
  friend class AttentionEngineAccess;  // attention_cudnn.cpp

  std::map<AttentionEngineKey, std::shared_ptr<const AttentionEngine>> engines_;
};

}  // namespace k25::kernels
