// gemm_forward allocates nothing: the linker routes every allocation made by the code of this
// program (Eigen's included, it is compiled in) through the counters below (--wrap,
// CMakeLists.txt).

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/gemm/gemm.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t count, std::size_t size);
void* __real_realloc(void* old, std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
int __real_posix_memalign(void** out, std::size_t alignment, std::size_t size);
void* __real__Znwm(std::size_t size);
void* __real__Znam(std::size_t size);
void* __real__ZnwmSt11align_val_t(std::size_t size, std::size_t alignment);

void* __wrap_malloc(std::size_t size) {
  ++allocations;
  return __real_malloc(size);
}
void* __wrap_calloc(std::size_t count, std::size_t size) {
  ++allocations;
  return __real_calloc(count, size);
}
void* __wrap_realloc(void* old, std::size_t size) {
  ++allocations;
  return __real_realloc(old, size);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __real_aligned_alloc(alignment, size);
}
int __wrap_posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  ++allocations;
  return __real_posix_memalign(out, alignment, size);
}
void* __wrap__Znwm(std::size_t size) {
  ++allocations;
  return __real__Znwm(size);
}
void* __wrap__Znam(std::size_t size) {
  ++allocations;
  return __real__Znam(size);
}
void* __wrap__ZnwmSt11align_val_t(std::size_t size, std::size_t alignment) {
  ++allocations;
  return __real__ZnwmSt11align_val_t(size, alignment);
}
}

namespace k25::kernels {
namespace {

TEST(GemmAllocation, TheCountersSeeAllocations) {
  const long before = allocations;
  {
    std::vector<int> v(100);
    volatile int* keep = v.data();
    keep[0] = 1;
    HostAllocator host;
    const Buffer buffer(Bytes{64}, host);
  }
  EXPECT_GE(allocations - before, 2);
}

TEST(GemmAllocation, ForwardAllocatesNothing) {
  HostAllocator host;
  ThreadPool pool(3);
  for (const DType t : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    const GemmDesc desc{
        .m = 300, .n = 530, .k = 1100, .transpose_b = Transpose::kYes, .dtype_ab = t, .dtype_d = t};
    const GemmPlan plan = gemm_plan(desc);
    const Buffer a(Bytes{300 * 1100 * 8}, host), b(Bytes{530 * 1100 * 8}, host);
    const Buffer d(Bytes{300 * 530 * 8}, host), scratch(plan.workspace_bytes, host);
    for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
      Context ctx{.isa = detect_cpu_isa(), .threads = threads};
      const GemmIn in{.a = a.view(t, {300, 1100}), .b = b.view(t, {530, 1100})};
      const GemmOut out{.d = d.view(t, {300, 530})};
      const long before = allocations;
      gemm_forward(ctx, plan, in, out, {scratch.data(), scratch.size()});
      EXPECT_EQ(allocations - before, 0) << dtype_name(t);
    }
  }
}

}  // namespace
}  // namespace k25::kernels
