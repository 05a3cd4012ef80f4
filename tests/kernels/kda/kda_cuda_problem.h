#pragma once
// A test problem of kda on the GPU. Only targets built with CUDA include it.

#include <utility>
#include <vector>

#include "kernels/kda/kda.h"
#include "tests/kernels/cuda_twin.h"
#include "tests/kernels/kda/kda_oracle.h"

namespace k25::kda_test {

using op_test::GpuScratch;
using op_test::OnGpu;

/// The operands of `from`, as `to` holds them.
inline void copy_operands(const Problem& from, Problem& to) {
  for (const auto& [x, y] : {std::pair{&to.q, &from.q},
                             {&to.k, &from.k},
                             {&to.v, &from.v},
                             {&to.g, &from.g},
                             {&to.beta, &from.beta},
                             {&to.initial, &from.initial},
                             {&to.dout, &from.dout},
                             {&to.dfinal, &from.dfinal}}) {
    x->set(y->get());
  }
}

/// All of a problem in device memory.
struct GpuProblem {
  const Problem& p;
  OnGpu q, k, v, g, beta, initial, out, final, dout, dfinal, dq, dk, dv, dg, dbeta, dinitial;
  OnGpu border, doc_begin, doc_end, offsets, checkpoint, saved;

  GpuProblem(const Context& ctx, const Problem& host)
      : p(host),
        q(ctx, p.q),
        k(ctx, p.k),
        v(ctx, p.v),
        g(ctx, p.g),
        beta(ctx, p.beta),
        initial(ctx, p.initial),
        out(ctx, p.out),
        final(ctx, p.final),
        dout(ctx, p.dout),
        dfinal(ctx, p.dfinal),
        dq(ctx, p.dq),
        dk(ctx, p.dk),
        dv(ctx, p.dv),
        dg(ctx, p.dg),
        dbeta(ctx, p.dbeta),
        dinitial(ctx, p.dinitial),
        border(ctx, p.border),
        doc_begin(ctx, p.doc_begin),
        doc_end(ctx, p.doc_end),
        offsets(ctx, p.offsets),
        checkpoint(ctx, p.checkpoint),
        saved(ctx, p.saved) {}

  kernels::KdaPlan plan() const {
    KdaDesc d = p.desc;
    d.device = Device::kCuda;
    return kernels::kda_plan(d);
  }
  kernels::SequenceBorders borders() const {
    kernels::SequenceBorders b;
    if (!p.packed.empty()) b.border_S1 = border;
    if (!p.documents.empty()) {
      b.doc_begin_BT = doc_begin;
      b.doc_end_BT = doc_end;
    }
    return b;
  }
  kernels::KdaForwardIn forward_in() const {
    kernels::KdaForwardIn in{q, k, v, g, beta, borders(), initial, {}};
    if (p.desc.checkpoints > 0) in.checkpoint_offset_SN = offsets;
    return in;
  }
  kernels::KdaForwardOut forward_out() const {
    kernels::KdaForwardOut o{out, final, {}, saved};
    if (p.desc.checkpoints > 0) o.checkpoint_SNMKV = checkpoint;
    return o;
  }
  kernels::KdaBackwardIn backward_in() const {
    return {q, k, v, g, beta, borders(), initial, saved, dout, dfinal};
  }
  kernels::KdaBackwardOut backward_out() const { return {dq, dk, dv, dg, dbeta, dinitial}; }

  void fetch() const {
    for (const OnGpu* t :
         {&out, &final, &checkpoint, &saved, &dq, &dk, &dv, &dg, &dbeta, &dinitial}) {
      EXPECT_TRUE(t->fetch().guards_intact());
    }
  }
};

enum class Direction { kForward, kBoth };

class KdaGpuTest : public op_test::CudaTest {
 protected:
  /// Results end in the tensors of `p`.
  void run(const Problem& p, Direction direction = Direction::kBoth) {
    const GpuProblem on_gpu(gpu(), p);
    const kernels::KdaPlan plan = on_gpu.plan();
    {
      const GpuScratch scratch(gpu(), plan.forward_workspace_bytes);
      kernels::kda_forward(gpu(), plan, on_gpu.forward_in(), on_gpu.forward_out(),
                           scratch.workspace());
      synchronize(gpu());
    }
    if (direction == Direction::kBoth) {
      const GpuScratch scratch(gpu(), plan.backward_workspace_bytes);
      kernels::kda_backward(gpu(), plan, on_gpu.backward_in(), on_gpu.backward_out(),
                            scratch.workspace());
      synchronize(gpu());
    }
    on_gpu.fetch();
  }

  /// fp32 within 1e-5 of the recurrence and its adjoint in fp64; bf16 by the rule, with the CPU's
  /// chunked form as the naive one.
  void expect_right(const KdaDesc& desc, const Gate& gate, const Lengths& packed = {},
                    const std::vector<Lengths>& documents = {}) {
    const Problem p(desc, gate, packed, documents, {.row_padding = 3, .shift = 1});
    KdaDesc d = desc;
    d.keep = KdaKeep::kNothing;
    Problem twin(d, gate, packed, documents);
    d.dtype = DType::kFloat64;
    d.form = KdaForm::kRecurrent;
    Problem exact(d, gate, packed, documents);
    copy_operands(p, exact);
    copy_operands(p, twin);
    run(p);
    exact.forward(cpu());
    exact.backward(cpu());
    twin.forward(cpu());
    twin.backward(cpu());
    for (std::size_t i = 0; i < p.results().size(); ++i) {
      const GuardedTensor& ours = *p.results()[i];
      if (ours.dtype() == DType::kBFloat16) {
        EXPECT_TRUE(op_test::twin_near(ours, *twin.results()[i], *exact.results()[i]))
            << "result " << i;
      } else {
        EXPECT_TRUE(op_test::all_near(ours.get(), exact.results()[i]->get(), 1e-5))
            << "result " << i;
      }
    }
  }
};

}  // namespace k25::kda_test
