#pragma once
// A model without mathematics for the tests of sharding: odd sizes, a tied unit, frozen, tiny and
// empty parameters, some whose gradient is written before it is added to, and gradients that depend
// on the parameters and on the micro-batch, element by element.
//
// Oracle does on whole arrays, one slot after another, what a ZeroStore must do on any number of
// ranks.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/philox.h"
#include "parallel/zero/zero_store.h"

namespace k25::parallel {

inline ParameterSpec toy_parameter(const std::string& name, std::vector<std::int64_t> shape) {
  ParameterSpec p;
  p.name = name;
  p.shape = std::move(shape);
  p.slices.emplace_back();
  p.slices[0].name = name;
  p.slices[0].row_end = p.shape.empty() ? 1 : p.shape[0];
  return p;
}

/// Unit 0 is used first and last (tied), unit 1 is replicated.
inline std::vector<UnitSpec> toy_units() {
  UnitSpec embedding{"embedding", Placement::kSharded, {toy_parameter("embedding", {93, 50})}};
  UnitSpec norms{"replicated",
                 Placement::kReplicated,
                 {toy_parameter("layers.0.norm", {5}), toy_parameter("layers.1.norm", {70}),
                  toy_parameter("norm", {1})}};
  for (ParameterSpec& p : norms.parameters) {
    p.fp32 = true;
    p.decay = false;
  }
  UnitSpec first{"layers.0",
                 Placement::kSharded,
                 {toy_parameter("layers.0.qkv", {96, 64}), toy_parameter("layers.0.empty", {0, 4}),
                  toy_parameter("layers.0.down", {33, 7})}};
  UnitSpec second{
      "layers.1",
      Placement::kSharded,
      {toy_parameter("layers.1.qkv", {120, 80}), toy_parameter("layers.1.frozen", {11, 10}),
       toy_parameter("layers.1.down", {13, 3})}};
  embedding.parameters[0].gradient_start = GradientStart::kWritten;
  first.parameters[1].gradient_start = GradientStart::kWritten;
  first.parameters[2].gradient_start = GradientStart::kWritten;
  second.parameters[1].gradient_start = GradientStart::kWritten;  // frozen: by nobody
  second.parameters[1].frozen = true;
  second.parameters[2].lr_scale = 0.5;
  UnitSpec tiny{"tiny", Placement::kSharded, {toy_parameter("tiny.scale", {3})}};
  tiny.parameters[0].fp32 = true;
  UnitSpec frozen{"frozen", Placement::kSharded, {toy_parameter("frozen.table", {40})}};
  frozen.parameters[0].frozen = true;
  UnitSpec none{"none", Placement::kSharded, {}};
  return {embedding, norms, first, second, tiny, frozen, none};
}

inline float toy_initial(const ParameterSpec& p, std::int64_t i) {
  return Philox(7, 0, p.name).uniform(static_cast<std::uint64_t>(i)) - 0.5F;
}

/// What micro-batch `k` adds to a gradient in its use number `use`, for the parameter value `w`.
class ToyGradient {
 public:
  explicit ToyGradient(const ParameterSpec& p) {
    const Philox philox(11, 0, p.name);
    for (std::int64_t i = 0; i < p.numel(); ++i) {
      noise_.push_back(philox.uniform(static_cast<std::uint64_t>(i)) - 0.5F);
    }
  }
  float operator()(std::int64_t i, float w, std::int64_t k, int use) const {
    const auto n = static_cast<std::int64_t>(noise_.size());
    const float a = noise_[static_cast<std::size_t>(i)];
    const float b = noise_[static_cast<std::size_t>((i * 7 + k * 131 + use * 17) % n)];
    return 0.25F * (w - a) + 3.0F * b * a;
  }

 private:
  std::vector<float> noise_;
};

class Toy {
 public:
  Toy() : units_(toy_units()) {
    for (const UnitSpec& u : units_) {
      gradients_.emplace_back();
      for (const ParameterSpec& p : u.parameters) gradients_.back().emplace_back(p);
    }
  }
  const std::vector<UnitSpec>& units() const { return units_; }
  const ToyGradient& gradient(int unit, std::size_t p) const {
    return gradients_[static_cast<std::size_t>(unit)][p];
  }

  /// The unit's gradient with zeros where the group has written nothing yet.
  static const std::vector<Tensor>& open_gradient(ZeroStore& store, int unit) {
    const std::vector<Tensor>& gradients = store.gradient(unit);
    for (std::size_t p = 0; p < gradients.size(); ++p) {
      if (!gradients[p] || !is_unwritten(store, unit, p)) continue;
      std::fill_n(gradients[p].data<float>(), gradients[p].numel(), 0.0F);
    }
    return gradients;
  }

  /// Every rank writes its own part of the initial masters.
  void init(ZeroStore& store) const {
    for (int u = 0; u < store.num_units(); ++u) {
      const UnitLayout& layout = store.layout(u);
      const Tensor master = store.master(u);
      for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
        for (std::int64_t i = 0; i < layout.parameters[p].numel(); ++i) {
          const std::int64_t at = layout.offsets[p] + i - store.shard_begin(u);
          if (at < 0 || at >= master.numel()) continue;
          master.data<float>()[at] = toy_initial(layout.parameters[p], i);
        }
      }
    }
    store.invalidate();
  }

  /// Forward and backward of global micro-batch `k`, calling the store as the trainer does.
  void micro_batch(ZeroStore& store, std::int64_t k) const {
    const int n = store.num_units();
    for (int u = 0; u < n; ++u) {
      store.prefetch((u + 1) % n);
      store.acquire(u);
      store.release(u, Phase::kForward);
    }
    use(store, 0, k, 0);  // the head: embedding's gradient stays open from here
    use(store, 1, k, 0);
    for (int u = n - 1; u >= 2; --u) {
      store.prefetch(u - 1);
      use(store, u, k, 0);
      store.gradient_done(u);
      use(store, 1, k, u);
    }
    use(store, 0, k, 1);
    store.gradient_done(1);
    store.gradient_done(0);
    store.end_micro_batch();
  }

  /// All micro-batches of this rank in one step; `step_base` numbers the step's first. `begun` is
  /// called before them.
  void accumulate(ZeroStore& store, const Mesh& mesh, const ZeroOptions& options,
                  std::int64_t step_base, const std::function<void()>& begun = {}) const {
    store.begin_step();
    if (begun) begun();
    const std::int64_t per_slot = options.micro_batches_per_slot;
    for (std::int64_t slot = mesh.data_rank(); slot < options.slots; slot += mesh.data_ranks()) {
      for (std::int64_t j = 0; j < per_slot; ++j) {
        micro_batch(store, step_base + slot * per_slot + j);
      }
    }
    store.finish_gradients();
  }

  /// How often micro-batches use a unit's gradient, and under which numbers, in order.
  static std::vector<int> uses(int unit, int num_units) {
    if (unit == 0) return {0, 1};
    if (unit > 1) return {0};
    std::vector<int> all{0};
    for (int u = num_units - 1; u >= 2; --u) all.push_back(u);
    return all;
  }

 private:
  static bool is_unwritten(const ZeroStore& store, int unit, std::size_t p) {
    return store.gradient_state(unit) == GradientState::kUnwritten &&
           store.layout(unit).parameters[p].gradient_start == GradientStart::kWritten;
  }

  static float value(const Tensor& t, std::int64_t i) {
    return t.dtype() == DType::kFloat32 ? t.data<float>()[i]
                                        : static_cast<float>(t.data<BFloat16>()[i]);
  }

  void use(ZeroStore& store, int unit, std::int64_t k, int number) const {
    const std::vector<Tensor>& weights = store.acquire(unit);
    const std::vector<Tensor>& gradients = store.gradient(unit);
    for (std::size_t p = 0; p < gradients.size(); ++p) {
      if (!gradients[p] || gradients[p].numel() == 0) continue;
      const ToyGradient& g = gradient(unit, p);
      float* sum = gradients[p].data<float>();
      const bool writes = is_unwritten(store, unit, p);
      for (std::int64_t i = 0; i < gradients[p].numel(); ++i) {
        sum[i] = (writes ? 0.0F : sum[i]) + g(i, value(weights[p], i), k, number);
      }
    }
    store.release(unit, Phase::kBackward);
  }

  std::vector<UnitSpec> units_;
  std::vector<std::vector<ToyGradient>> gradients_;
};

/// The same training state in whole arrays.
class Oracle {
 public:
  struct Parameter {
    const ParameterSpec* spec;
    int unit;
    std::size_t index;  ///< in the unit
    DType compute;
    std::vector<float> master, m, v, gradient;
  };

  Oracle(const Toy& toy, const ZeroOptions& options) : toy_(toy), options_(options) {
    for (std::size_t u = 0; u < toy.units().size(); ++u) {
      const UnitSpec& unit = toy.units()[u];
      for (std::size_t p = 0; p < unit.parameters.size(); ++p) {
        const ParameterSpec& spec = unit.parameters[p];
        const bool keep = spec.fp32 || unit.placement == Placement::kReplicated;
        const auto n = static_cast<std::size_t>(spec.numel());
        Parameter state{&spec,
                        static_cast<int>(u),
                        p,
                        keep ? DType::kFloat32 : options.compute,
                        {},
                        std::vector<float>(n),
                        std::vector<float>(n),
                        std::vector<float>(n)};
        for (std::int64_t i = 0; i < spec.numel(); ++i)
          state.master.push_back(toy_initial(spec, i));
        parameters_.push_back(std::move(state));
      }
    }
  }

  std::vector<Parameter>& parameters() { return parameters_; }

  /// The left fold over slots of the sums of their micro-batches in order.
  void accumulate(std::int64_t step_base) {
    for (Parameter& p : parameters_) {
      std::fill(p.gradient.begin(), p.gradient.end(), 0.0F);
      if (p.spec->frozen) continue;
      const ToyGradient& g = toy_.gradient(p.unit, p.index);
      const std::vector<int> uses = Toy::uses(p.unit, static_cast<int>(toy_.units().size()));
      for (std::int64_t i = 0; i < p.spec->numel(); ++i) {
        const float master = p.master[static_cast<std::size_t>(i)];
        const float w =
            p.compute == DType::kFloat32 ? master : static_cast<float>(BFloat16(master));
        float sum = 0.0F;
        for (std::int64_t slot = 0; slot < options_.slots; ++slot) {
          float slot_sum = 0.0F;
          for (std::int64_t j = 0; j < options_.micro_batches_per_slot; ++j) {
            const std::int64_t k = step_base + slot * options_.micro_batches_per_slot + j;
            for (const int use : uses) slot_sum += g(i, w, k, use);
          }
          sum += slot_sum;
        }
        p.gradient[static_cast<std::size_t>(i)] = sum;
      }
    }
  }

 private:
  const Toy& toy_;
  ZeroOptions options_;
  std::vector<Parameter> parameters_;
};

}  // namespace k25::parallel
