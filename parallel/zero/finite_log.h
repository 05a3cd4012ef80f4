#pragma once
// Private to parallel/zero: which gradients were not finite before they were reduced; afterwards
// nobody can say whose number it was.
//
// On a GPU the looks are kernels that leave an index behind, and all indices come to the host in
// one copy: nothing waits. first() is valid after the host has waited for the stream.

#include <cstdint>
#include <vector>

#include "kernels/core/context.h"
#include "parallel/zero/zero_memory.h"

namespace k25::parallel {

class FiniteLog {
 public:
  /// `marks`: [looks of a step] int64, where the kernels write. `host_marks`, likewise, in pinned
  /// memory: where they are read when that is a GPU; absent on the CPU.
  FiniteLog(const Tensor& marks, const Tensor& host_marks);

  void begin_step() { looks_.clear(); }
  void look(Context& context, int unit, const Tensor& whole_n);
  void finish_step(Context& context);
  ZeroStore::BadElement first() const;

 private:
  struct Look {
    int unit = 0;
    std::int64_t elements = 0;
  };

  Tensor marks_, host_marks_;
  std::vector<Look> looks_;
};

}  // namespace k25::parallel
