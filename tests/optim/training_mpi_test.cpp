// Twenty steps of the toy model: masters and moments of any mesh and any options equal those of a
// serial program, bit by bit. This is what makes a run independent of its rank count.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <memory>

#include "kernels/core/update_math.h"
#include "optim/adamw.h"
#include "optim/statistics.h"
#include "tests/data/scratch_folder.h"
#include "tests/mpi_main.h"
#include "tests/parallel/zero/toy.h"

namespace k25::optim {
namespace {

using parallel::MeshShape;
using parallel::Oracle;
using parallel::Place;
using parallel::ReduceAfter;
using parallel::ReshardAfter;
using parallel::test_world;
using parallel::Toy;
using parallel::ZeroOptions;
using parallel::ZeroStore;

constexpr int kSteps = 20;
constexpr std::int64_t kTokens = 3;  // of one micro-batch
constexpr int kBadStep = 5;          // one gradient of this step is not finite

OptimOptions optim_options() {
  OptimOptions o;
  o.schedule = {.kind = ScheduleKind::kCosine, .lr = 0.02, .warmup = 4, .total = kSteps};
  o.beta2 = 0.95;
  o.weight_decay = 0.1;
  o.clip = 6.1;  // some steps are above, some below
  return o;
}

std::int64_t micro_batches(const ZeroOptions& o) { return o.slots * o.micro_batches_per_slot; }

/// What decide() gets in step `step`, but for the norm.
StepStats shared_stats(int step, const ZeroOptions& o) {
  StepStats s;
  s.label_tokens = kTokens * micro_batches(o);
  s.nll_fixed = s.label_tokens << 24;
  s.gradient_finite = step != kBadStep;
  return s;
}

AdamWScalars scalars(const StepPlan& plan, const parallel::ParameterSpec& p) {
  const double lr = plan.lr * p.lr_scale;
  return {.grad_scale = static_cast<float>(plan.scale),
          .beta1 = static_cast<float>(plan.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - plan.beta1),
          .beta2 = static_cast<float>(plan.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - plan.beta2),
          .bias_correction1 = static_cast<float>(plan.bias_correction1),
          .bias_correction2 = static_cast<float>(plan.bias_correction2),
          .eps = static_cast<float>(plan.eps),
          .lr = static_cast<float>(lr),
          .lr_weight_decay = p.decay ? static_cast<float>(lr * plan.weight_decay) : 0.0F};
}

/// The serial program. Square sums come from the run: equal on all meshes by statistics_mpi_test.
struct Serial {
  Serial(const Toy& toy, const ZeroOptions& options) : oracle(toy, options), zero(options) {}

  StepPlan step(int number, double square_sum) {
    oracle.accumulate(number * micro_batches(zero));
    StepStats stats = shared_stats(number, zero);
    stats.gradient_square_sum = square_sum;
    const StepPlan plan = decide(stats, state, optim_options());
    state = plan.next;
    if (plan.action != StepAction::kApply) return plan;
    for (Oracle::Parameter& p : oracle.parameters()) {
      if (p.spec->frozen) continue;
      const AdamWScalars s = scalars(plan, *p.spec);
      for (std::size_t i = 0; i < p.master.size(); ++i) {
        const AdamWState next = adamw_update({p.master[i], p.m[i], p.v[i]}, p.gradient[i], s);
        p.master[i] = next.master;
        p.m[i] = next.m;
        p.v[i] = next.v;
      }
    }
    return plan;
  }

  double square_sum() {
    double sum = 0.0;
    for (const Oracle::Parameter& p : oracle.parameters()) {
      for (const float g : p.gradient) sum += static_cast<double>(g) * g;
    }
    return sum;
  }

  Oracle oracle;
  ZeroOptions zero;
  PolicyState state;
};

void expect_equal_state(ZeroStore& store, Serial& serial) {
  for (const Oracle::Parameter& p : serial.oracle.parameters()) {
    const std::int64_t first = store.layout(p.unit).offsets[p.index] - store.shard_begin(p.unit);
    const auto n = static_cast<std::size_t>(store.master(p.unit).numel());
    std::vector<float> master(n), m(n), v(n);
    store.read_state(p.unit, 0, {.master = master, .m = m, .v = v});
    const struct {
      const char* name;
      const std::vector<float>& shard;
      const std::vector<float>& whole;
    } all[] = {{"master", master, p.master}, {"m", m, p.m}, {"v", v, p.v}};
    for (const auto& state : all) {
      for (std::size_t i = 0; i < state.whole.size(); ++i) {
        const std::int64_t at = first + static_cast<std::int64_t>(i);
        if (at < 0 || at >= std::ssize(state.shard)) continue;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(state.shard[static_cast<std::size_t>(at)]),
                  std::bit_cast<std::uint32_t>(state.whole[i]))
            << state.name << " of " << p.spec->name << "[" << i << "]";
      }
    }
  }
}

/// The run over the mesh.
struct Sharded {
  Sharded(const MeshShape& shape, const ZeroOptions& options)
      : zero(options),
        mesh(test_world(), shape),
        store(mesh, toy.units(), options, context, allocator, &host),
        statistics(mesh, store, host, allocator) {
    toy.init(store);
  }

  /// In step kBadStep the last data rank makes a NaN.
  StepPlan step(int number) {
    std::optional<StepPlan> guess;
    toy.accumulate(store, mesh, zero, number * micro_batches(zero), [&] {
      if (!store.can_guess()) return;
      guess =
          decide({.label_tokens = shared_stats(number, zero).label_tokens}, state, optim_options());
      guess_adamw(store, *guess);
    });
    LocalStats local;
    for (std::int64_t i = 0; i < micro_batches(zero) / mesh.data_ranks(); ++i) {
      add_nll(local, static_cast<double>(kTokens));
      local.label_tokens += kTokens;
    }
    if (number == kBadStep && mesh.data_rank() == mesh.data_ranks() - 1) {
      add_nll(local, std::nan(""));
    }
    statistics.begin(context);
    const StepStats stats = statistics.gather(context, local);
    EXPECT_EQ(stats.label_tokens, shared_stats(number, zero).label_tokens);
    square_sum = stats.gradient_square_sum;
    const StepPlan plan = decide(stats, state, optim_options());
    apply_adamw(store, plan, guess);
    if (guess && plan.action == StepAction::kApply) {
      ++(same_update(*guess, plan) ? right : wrong);
    }
    store.end_step();
    state = plan.next;
    return plan;
  }

  Toy toy;
  ZeroOptions zero;
  parallel::Mesh mesh;
  HostAllocator allocator, host;  // `host` stands for pinned memory beside a device's
  Context context;
  ZeroStore store;
  Statistics statistics;
  PolicyState state;
  double square_sum = 0.0;
  int right = 0, wrong = 0;  ///< guesses
};

std::string describe(const parallel::OffloadOptions& o) {
  const auto place = [](Place p) { return std::string(p == Place::kHost ? "host" : "device"); };
  return place(o.optimizer) + " " + place(o.params) + " " + std::to_string(o.resident) + " " +
         std::to_string(o.early) + " " + o.nvme.string();
}

void train(const MeshShape& shape, const ZeroOptions& options) {
  SCOPED_TRACE("replicate " + std::to_string(shape.replicate) + " shard " +
               std::to_string(shape.shard) + " " + std::string(dtype_name(options.compute)) +
               " per slot " + std::to_string(options.micro_batches_per_slot) + " offload " +
               describe(options.offload));
  Sharded run(shape, options);
  Serial serial(run.toy, options);
  int clipped = 0, skipped = 0;
  for (int s = 0; s < kSteps; ++s) {
    const StepPlan plan = run.step(s);
    const StepPlan want = serial.step(s, run.square_sum);
    ASSERT_NEAR(run.square_sum, serial.square_sum(), 1e-12 * run.square_sum);
    ASSERT_EQ(plan.action, want.action);
    clipped += plan.gradient_norm > optim_options().clip ? 1 : 0;
    skipped += plan.action == StepAction::kSkipNonFinite ? 1 : 0;
  }
  EXPECT_EQ(run.state, serial.state);
  EXPECT_EQ(skipped, 1);
  EXPECT_GT(clipped, 0);  // the data reach both branches
  EXPECT_LT(clipped, kSteps);
  EXPECT_EQ(run.right > 0 && run.wrong > 0, options.offload.early > 0.0);
  expect_equal_state(run.store, serial);
}

TEST(TrainingMpi, TwentyStepsEqualTheSerialProgram) {
  const int ranks = test_world().size();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t per_slot : {1, 2}) {
      for (int r = 1; r <= ranks; ++r) {
        if (ranks % r != 0) continue;
        train({.replicate = r, .shard = ranks / r}, {.open_gradients = 1,
                                                     .slots = 12,
                                                     .micro_batches_per_slot = per_slot,
                                                     .compute = compute});
      }
    }
  }
}

TEST(TrainingMpi, OptionsDoNotChangeTheBits) {
  for (const ReshardAfter reshard :
       {ReshardAfter::kForward, ReshardAfter::kMicroBatch, ReshardAfter::kStep}) {
    for (const ReduceAfter reduce : {ReduceAfter::kMicroBatch, ReduceAfter::kStep}) {
      train({.shard = test_world().size()}, {.reshard_after = reshard,
                                             .reduce_after = reduce,
                                             .prefetch = 2,
                                             .open_gradients = 1,
                                             .slots = 12,
                                             .compute = DType::kBFloat16});
    }
  }
}

// Half of the units on the host, or all, by any rule; with a reduction, and in place.
TEST(TrainingMpi, OffloadDoesNotChangeTheBits) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const auto& [optimizer, params] :
         {std::pair{Place::kHost, Place::kDevice}, std::pair{Place::kHost, Place::kHost},
          std::pair{Place::kDevice, Place::kHost}}) {
      for (const double resident : {0.0, 0.5}) {
        const std::int64_t slots = resident == 0.0 ? test_world().size() : 12;
        train({.shard = test_world().size()},
              {.open_gradients = 1,
               .slots = slots,
               .micro_batches_per_slot = 12 / slots,
               .compute = compute,
               .offload = {
                   .optimizer = optimizer, .params = params, .resident = resident, .threads = 2}});
      }
    }
  }
}

// Guesses that are right, wrong (the clip), and dropped (the step is skipped).
TEST(TrainingMpi, EarlyUpdatesDoNotChangeTheBits) {
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    for (const Place params : {Place::kDevice, Place::kHost}) {
      for (const double early : {0.5, 1.0}) {
        train({.shard = test_world().size()},
              {.open_gradients = 1,
               .slots = 12,
               .compute = compute,
               .offload = {
                   .optimizer = Place::kHost, .params = params, .threads = 2, .early = early}});
      }
    }
  }
}

TEST(TrainingMpi, MomentsInAFileDoNotChangeTheBits) {
  const data::ScratchFolder folder;
  for (const Place params : {Place::kDevice, Place::kHost}) {
    train({.shard = test_world().size()}, {.open_gradients = 1,
                                           .slots = 12,
                                           .compute = DType::kBFloat16,
                                           .offload = {.optimizer = Place::kHost,
                                                       .params = params,
                                                       .resident = 0.2,
                                                       .threads = 2,
                                                       .nvme = folder.path()}});
    EXPECT_EQ(folder.entries(), 0);
  }
}

}  // namespace
}  // namespace k25::optim
