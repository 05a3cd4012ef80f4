#include "tests/kernels/allocation_counter.h"

#include <cstdlib>
#include <new>

// noinline: inlined into a caller, GCC 12 takes malloc and operator delete for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++k25::op_test::allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++k25::op_test::allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
