#include "kernels/attention/attention_cudnn.h"

#include <algorithm>
#include <limits>

#include "kernels/attention/attention_cudnn_graphs.h"
#include "kernels/core/buffer.h"
#include "kernels/core/cuda_check.h"

namespace k25::kernels {

struct AttentionEngine {
  CudnnGraph graph;
  bool usable = false;
};

/// The private side of AttentionEngines.
class AttentionEngineAccess {
 public:
  static std::shared_ptr<const AttentionEngine>& engine(AttentionEngines& table,
                                                        const AttentionEngineKey& key) {
    return table.engines_[key];
  }
  /// Null: nothing was chosen yet.
  static const AttentionEngineChoice* choice(const AttentionEngines& table,
                                             const AttentionEngineKey& key) {
    const auto found = table.choices_.find(key);
    return found == table.choices_.end() ? nullptr : &found->second;
  }
  static void keep(AttentionEngines& table, const AttentionEngineKey& key,
                   const AttentionEngineChoice& choice) {
    table.choices_.emplace(key, choice);
  }
};

namespace {

/// Why the GPU of the calling thread is not one whose results were checked to be deterministic.
const char* device_refusal() {
  int device = 0, major = 0, minor = 0;
  K25_CUDA_CHECK(cudaGetDevice(&device));
  K25_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  K25_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0 ? nullptr
                                  : "cuDNN's attention is checked on compute capability 9.0 alone";
}

bool whole_words(const ConstTensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0 && t.stride(0) % kCudnnWord == 0 &&
         t.stride(1) % kCudnnWord == 0 && t.stride(2) % kCudnnWord == 0;
}

template <class In>
const char* operand_refusal(const In& in, const ConstTensor& out, const ConstTensor& lse) {
  const bool words = whole_words(in.q_BTHE) && whole_words(in.k_BTKE) && whole_words(in.v_BTKV) &&
                     whole_words(out);
  if (!words) return "cuDNN needs operands whose rows start at multiples of 16 bytes";
  return lse.is_contiguous() ? nullptr : "cuDNN needs lse without gaps";
}

AttentionEngineKey::Strides strides_of(const ConstTensor& t) {
  return {t.stride(0), t.stride(1), t.stride(2)};
}

template <class In>
AttentionEngineKey key_of(const AttentionDesc& d, AttentionDirection direction,
                          std::int64_t sequences, const In& in, const ConstTensor& out) {
  AttentionEngineKey key{.direction = direction,
                         .batch = sequences,
                         .tokens = d.tokens,
                         .heads = d.heads,
                         .kv_heads = d.kv_heads,
                         .head_dim = d.head_dim,
                         .q = strides_of(in.q_BTHE),
                         .k = strides_of(in.k_BTKE),
                         .v = strides_of(in.v_BTKV),
                         .out = strides_of(out)};
  if (in.doc_begin_BT) {
    key.document_stride = std::max<std::int64_t>(in.doc_begin_BT.stride(0), d.tokens);
  }
  return key;
}

void describe(const AttentionEngineKey& key, CudnnGraph& graph) {
  if (key.direction == AttentionDirection::kForward) {
    describe_attention_forward(key, graph);
  } else {
    describe_attention_backward(key, graph);
  }
}

/// Makes `engine` the stored one.
void restore(const Context& ctx, const AttentionEngineKey& key, const AttentionEngineChoice& stored,
             Bytes limit, AttentionEngine& engine) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorKind::kUsage, "stored attention engine '" + attention_engine_string(key, stored) +
                                "': " + why + "stored engines, and they are chosen anew");
  };
  if (stored.library != cudnnGetVersion()) {
    refuse("this is cuDNN " + std::to_string(cudnnGetVersion()) +
           "; use the version that stored it, or remove the ");
  }
  if (!stored.engine) return;
  describe(key, engine.graph);
  engine.usable =
      device_refusal() == nullptr && engine.graph.take_engine(ctx.cudnn, *stored.engine, limit);
  if (!engine.usable) refuse("cuDNN refuses it on this GPU; remove the ");
}

std::shared_ptr<const AttentionEngine> make_engine(const Context& ctx,
                                                   const AttentionEngineKey& key, Bytes limit) {
  auto engine = std::make_shared<AttentionEngine>();
  AttentionEngines& table = *ctx.attention_engines;
  if (const AttentionEngineChoice* stored = AttentionEngineAccess::choice(table, key)) {
    restore(ctx, key, *stored, limit, *engine);
    return engine;
  }
  AttentionEngineChoice chosen{.library = cudnnGetVersion(), .engine = {}};
  if (device_refusal() == nullptr) {
    describe(key, engine->graph);
    chosen.engine = engine->graph.choose_engine(ctx.cudnn, limit);
  }
  engine->usable = chosen.engine.has_value();
  AttentionEngineAccess::keep(table, key, chosen);
  return engine;
}

/// The engine for `key`; null where cuDNN has none that fits `limit`.
const AttentionEngine* engine_for(const Context& ctx, const AttentionEngineKey& key, Bytes limit) {
  auto& entry = AttentionEngineAccess::engine(*ctx.attention_engines, key);
  if (entry == nullptr) entry = make_engine(ctx, key, limit);
  return entry->usable ? entry.get() : nullptr;
}

/// The library's part of the scratch.
void* library_scratch(const Workspace& workspace, Bytes offset) {
  const auto at =
      reinterpret_cast<std::uintptr_t>(workspace.data) + static_cast<std::uintptr_t>(offset.n);
  return reinterpret_cast<void*>(align_up(static_cast<std::int64_t>(at), kCudnnScratchAlignment));
}

/// The handle may have served another stream.
void use_stream(const Context& ctx) {
  cudaStream_t current = nullptr;
  if (cudnnGetStream(ctx.cudnn, &current) == CUDNN_STATUS_SUCCESS && current == ctx.stream) return;
  if (cudnnSetStream(ctx.cudnn, ctx.stream) != CUDNN_STATUS_SUCCESS) {
    fail(ErrorKind::kInternal, "attention: cudnnSetStream failed");
  }
}

/// Operands of one run. Scalars live as long as the run.
class Bindings {
 public:
  explicit Bindings(double scale) : scale_(static_cast<float>(scale)) {
    add(CudnnOperand::kScale, &scale_);
    add(CudnnOperand::kHidden, &hidden_);
  }
  Bindings(const Bindings&) = delete;
  Bindings& operator=(const Bindings&) = delete;

  void add(CudnnOperand operand, void* data) {
    bindings_[count_++] = {static_cast<std::int64_t>(operand), data};
  }
  /// Sequence `first` and those behind it.
  void add(CudnnOperand operand, const ConstTensor& t, std::int64_t first = 0) {
    const auto* const data = static_cast<const char*>(t.raw());
    add(operand, const_cast<char*>(data + first * t.stride(0) * dtype_bytes(t.dtype())));
  }
  template <class In>
  void add_inputs(const In& in, std::int64_t first) {
    add(CudnnOperand::kQ, in.q_BTHE, first);
    add(CudnnOperand::kK, in.k_BTKE, first);
    add(CudnnOperand::kV, in.v_BTKV, first);
    if (in.doc_begin_BT) add(CudnnOperand::kDocBegin, in.doc_begin_BT, first);
  }
  void add_one() { add(CudnnOperand::kOne, &one_); }
  std::span<const CudnnBinding> get() const { return {bindings_.data(), count_}; }

 private:
  float scale_, one_ = 1.f, hidden_ = -std::numeric_limits<float>::infinity();
  std::array<CudnnBinding, CudnnGraph::kMaxOperands> bindings_{};
  std::size_t count_ = 0;
};

constexpr const char* kNoTable = "cuDNN needs a table of engines in Context::attention_engines";
constexpr const char* kNoEngine =
    "cuDNN has no deterministic kernel for this shape on this GPU in the scratch planned";

}  // namespace

const char* attention_forward_cudnn(Context& ctx, const AttentionDesc& d,
                                    const AttentionForwardIn& in, const AttentionForwardOut& out,
                                    Workspace workspace) {
  if (ctx.attention_engines == nullptr) return kNoTable;
  if (const char* why = operand_refusal(in, out.out_BTHV, out.lse_BHT)) return why;
  const AttentionEngineKey key = key_of(d, AttentionDirection::kForward, d.batch, in, out.out_BTHV);
  const AttentionEngine* const engine = engine_for(ctx, key, kCudnnSlack);
  if (engine == nullptr) return kNoEngine;
  use_stream(ctx);
  Bindings bindings(d.scale);
  bindings.add_inputs(in, 0);
  bindings.add(CudnnOperand::kOut, out.out_BTHV);
  bindings.add(CudnnOperand::kLse, out.lse_BHT);
  engine->graph.run(ctx.cudnn, bindings.get(), library_scratch(workspace, {}));
  return nullptr;
}

const char* attention_backward_cudnn(Context& ctx, const AttentionDesc& d,
                                     const AttentionBackwardIn& in, const AttentionBackwardOut& out,
                                     Workspace workspace) {
  if (ctx.attention_engines == nullptr) return kNoTable;
  if (const char* why = operand_refusal(in, in.out_BTHV, in.lse_BHT)) return why;
  if (!whole_words(in.dout_BTHV) || !whole_words(out.dq_BTHE) || !whole_words(out.dk_BTKE) ||
      !whole_words(out.dv_BTKV)) {
    return "cuDNN needs gradients whose rows start at multiples of 16 bytes";
  }
  const std::int64_t piece = cudnn_backward_piece(d);
  AttentionEngineKey key = key_of(d, AttentionDirection::kBackward, piece, in, in.out_BTHV);
  key.dout = strides_of(in.dout_BTHV);
  key.dq = strides_of(out.dq_BTHE);
  key.dk = strides_of(out.dk_BTKE);
  key.dv = strides_of(out.dv_BTKV);
  const Bytes limit{cudnn_backward_bytes(d, piece).n + kCudnnSlack.n};
  const AttentionEngine* const engine = engine_for(ctx, key, limit);
  if (engine == nullptr) return kNoEngine;
  use_stream(ctx);
  for (std::int64_t first = 0; first < d.batch; first += piece) {
    Bindings bindings(d.scale);
    bindings.add_inputs(in, first);
    bindings.add(CudnnOperand::kOut, in.out_BTHV, first);
    bindings.add(CudnnOperand::kLse, in.lse_BHT, first);
    bindings.add(CudnnOperand::kDout, in.dout_BTHV, first);
    bindings.add(CudnnOperand::kDq, out.dq_BTHE, first);
    bindings.add(CudnnOperand::kDk, out.dk_BTKE, first);
    bindings.add(CudnnOperand::kDv, out.dv_BTKV, first);
    bindings.add(CudnnOperand::kDelta, workspace.data);
    bindings.add_one();
    engine->graph.run(ctx.cudnn, bindings.get(),
                      library_scratch(workspace, cudnn_delta_bytes(d, piece)));
  }
  return nullptr;
}

}  // namespace k25::kernels
