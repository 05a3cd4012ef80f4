#pragma once
// Private to parallel/zero: small things that the gatherer and the reducer share.

#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/context.h"
#include "kernels/core/tensor.h"
#include "parallel/comm/communicator.h"
#include "parallel/zero/unit.h"

namespace k25::parallel {

inline Queue queue_of(const Context& context) {
  return context.stream == nullptr ? Queue::host() : Queue::on_stream(context.stream);
}

/// Element `i` of a vector that is indexed by unit or buffer.
template <class Vector>
auto& at(Vector& v, int i) {
  K25_CHECK(i >= 0 && static_cast<std::size_t>(i) < v.size(), "no unit has this index");
  return v[static_cast<std::size_t>(i)];
}

/// For destructors: waits for a call whose buffers are about to go; its error has been or will be
/// reported by the call that needed the result.
inline void settle(Work& work) noexcept {
  try {
    work.wait();
  } catch (const std::exception&) {
    work = Work{};
  }
}

/// One view per parameter into the unit's flat `storage`.
inline void point_parameters(const UnitLayout& layout, const Tensor& storage,
                             std::vector<Tensor>& views) {
  for (std::size_t p = 0; p < views.size(); ++p) {
    const std::int64_t begin = std::min(layout.offsets[p], storage.numel());
    views[p] = Tensor(storage.slice(0, begin, begin).raw(), storage.dtype(),
                      layout.parameters[p].shape, storage.device());
  }
}

}  // namespace k25::parallel
