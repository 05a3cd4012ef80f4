#include "kernels/core/buffer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/kernels/op_test.h"

// The out-of-memory tests need a null pointer where sanitizers abort by default.
// NOLINTNEXTLINE(readability-identifier-naming): the sanitizers' names
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace k25 {
namespace {

using op_test::throws_error;

TEST(HostAllocator, MemoryIsAlignedZeroedAndCounted) {
  HostAllocator host;
  EXPECT_EQ(host.device(), Device::kCpu);
  void* a = host.allocate(Bytes{100});
  void* b = host.allocate(Bytes{1});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % 64, 0u);
  EXPECT_EQ(std::vector<char>(static_cast<char*>(a), static_cast<char*>(a) + 100),
            std::vector<char>(100, 0));
  EXPECT_EQ(host.live(), Bytes{101});
  host.deallocate(a, Bytes{100});
  EXPECT_EQ(host.live(), Bytes{1});
  EXPECT_EQ(host.peak(), Bytes{101});
  void* c = host.allocate(Bytes{50});
  EXPECT_EQ(host.peak(), Bytes{101});
  host.deallocate(b, Bytes{1});
  host.deallocate(c, Bytes{50});
  EXPECT_EQ(host.live(), Bytes{0});
  EXPECT_EQ(host.peak(), Bytes{101});
}

TEST(HostAllocator, KnowsWhatIsLiveAndWhatFor) {
  HostAllocator host;
  const Buffer masters(Bytes{100}, host, "masters");
  {
    const Arena scratch(Bytes{64}, host, "scratch");
    ASSERT_EQ(host.allocations().size(), 2u);
    EXPECT_STREQ(host.allocations()[1].name, "scratch");
    EXPECT_EQ(host.allocations()[1].size, Bytes{64});
  }
  const Buffer nameless(Bytes{7}, host);
  ASSERT_EQ(host.allocations().size(), 2u);
  EXPECT_STREQ(host.allocations()[0].name, "masters");
  EXPECT_EQ(host.allocations()[0].data, masters.data());
  EXPECT_STREQ(host.allocations()[1].name, "");
  EXPECT_EQ(host.allocations()[1].size, Bytes{7});
}

TEST(HostAllocator, ZeroSizeIsNull) {
  HostAllocator host;
  EXPECT_EQ(host.allocate(Bytes{0}), nullptr);
  host.deallocate(nullptr, Bytes{0});
  EXPECT_EQ(host.live(), Bytes{0});
}

TEST(HostAllocator, TooMuchIsAnErrorThatLeavesTheCount) {
  HostAllocator host;
  for (const std::int64_t size : {std::int64_t{1} << 60, INT64_MAX}) {
    EXPECT_TRUE(throws_error([&] { host.allocate(Bytes{size}); }, ErrorKind::kUsage,
                             {"out of memory", std::to_string(size), "use more ranks"}));
  }
  EXPECT_TRUE(throws_error([&] { host.allocate(Bytes{-1}); }, ErrorKind::kUsage,
                           {"must not be negative", "-1"}));
  EXPECT_EQ(host.live(), Bytes{0});
  EXPECT_EQ(host.peak(), Bytes{0});
}

TEST(HostMemory, IsLookedForAndNotTaken) {
  require_host_memory(Bytes{1 << 20});
  EXPECT_TRUE(throws_error([] { require_host_memory(Bytes{std::int64_t{1} << 60}); },
                           ErrorKind::kUsage, {"out of memory", "use more ranks"}));
}

TEST(HostMemory, AMessageNamesTheLimitOnTheAddressSpace) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(out_of_memory("memory").find("ulimit -v"), std::string::npos);
    EXPECT_EQ(thread_limits().find("ulimit -v"), std::string::npos);
  }
  constexpr rlim_t kLimit = rlim_t{1} << 62;  // hinders nothing
  ASSERT_LE(kLimit, before.rlim_max);
  const rlimit limited{kLimit, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  const std::string memory = out_of_memory("memory"), threads = thread_limits();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(memory.find("ulimit -v: 4503599627370496 KiB"), std::string::npos) << memory;
  EXPECT_NE(threads.find("ulimit -v: 4503599627370496 KiB"), std::string::npos) << threads;
}

TEST(Buffer, OwnsItsMemory) {
  HostAllocator host;
  {
    const Buffer b(Bytes{256}, host);
    EXPECT_NE(b.data(), nullptr);
    EXPECT_EQ(b.size(), Bytes{256});
    EXPECT_EQ(host.live(), Bytes{256});
  }
  EXPECT_EQ(host.live(), Bytes{0});
}

TEST(Buffer, EmptyBuffers) {
  HostAllocator host;
  const Buffer none, zero(Bytes{0}, host);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(zero.data(), nullptr);
  EXPECT_EQ(zero.size(), Bytes{0});
  EXPECT_EQ(zero.view(DType::kFloat32, {0, 5}).numel(), 0);
  EXPECT_THROW(Buffer(Bytes{-8}, host), Error);
}

TEST(Buffer, MovesInsteadOfCopies) {
  HostAllocator host;
  Buffer a(Bytes{64}, host);
  void* data = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a moved buffer holds
  EXPECT_EQ(a.size(), Bytes{0});
  Buffer c(Bytes{128}, host);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), Bytes{64});
  b = Buffer();
  EXPECT_EQ(host.live(), Bytes{64});
  static_assert(!std::is_copy_constructible_v<Buffer>);
}

TEST(Buffer, ViewsMustFit) {
  HostAllocator host;
  const Buffer b(Bytes{100}, host);
  const Tensor t = b.view(DType::kFloat32, {2, 3}, Bytes{64});
  EXPECT_EQ(t.raw(), static_cast<char*>(b.data()) + 64);
  EXPECT_EQ(t.stride(0), 3);
  EXPECT_EQ(b.view(DType::kFloat32, {25}).numel(), 25);
  EXPECT_TRUE(throws_error([&] { b.view(DType::kFloat32, {26}); }, ErrorKind::kUsage,
                           {"view of 104 bytes at offset 0", "buffer of 100 bytes"}));
  EXPECT_TRUE(throws_error([&] { b.view(DType::kFloat32, {25}, Bytes{4}); }, ErrorKind::kUsage,
                           {"view of 100 bytes at offset 4"}));
  EXPECT_TRUE(throws_error([&] { b.view(DType::kUInt8, {1}, Bytes{-1}); }, ErrorKind::kUsage,
                           {"offset -1"}));
  EXPECT_TRUE(throws_error([&] { b.view(DType::kUInt8, {0}, Bytes{101}); }, ErrorKind::kUsage,
                           {"offset 101"}));
}

/// A sequence of takes and rewinds, as a block's forward makes it.
void sequence(Arena& arena) {
  const Arena::Mark start = arena.mark();
  arena.take(DType::kFloat32, {10, 3});
  const Arena::Mark inner = arena.mark();
  arena.take(DType::kBFloat16, {1});
  arena.take(DType::kFloat64, {0, 7});
  arena.take(DType::kUInt8, {65}).slice(0, 10, 20);
  arena.rewind(inner);
  arena.take(DType::kInt64, {9});
  arena.rewind(start);
  arena.take(DType::kFloat32, {16});
}

TEST(Arena, MeasuringGivesWhatTheRealOneNeeds) {
  Arena measure;
  sequence(measure);
  EXPECT_TRUE(measure.measuring());
  EXPECT_EQ(measure.used(), Bytes{64});
  // 120 -> 128, then 64 + 0 + 128 against 72 -> 128.
  EXPECT_EQ(measure.peak(), Bytes{128 + 192});
  EXPECT_EQ(measure.take(DType::kFloat32, {4}).raw(), nullptr);

  HostAllocator host;
  Arena arena(Bytes{128 + 192}, host);
  sequence(arena);
  EXPECT_FALSE(arena.measuring());
  EXPECT_EQ(arena.peak(), Bytes{128 + 192});
  EXPECT_EQ(arena.used(), Bytes{64});
  EXPECT_EQ(arena.capacity(), Bytes{128 + 192});

  Arena small(Bytes{128 + 192 - 64}, host);
  EXPECT_TRUE(throws_error([&] { sequence(small); }, ErrorKind::kInternal,
                           {"arena of 256 bytes is too small", "[65] uint8", "128 more"}));
}

TEST(Arena, TakesAreAlignedAndDisjoint) {
  HostAllocator host;
  Arena arena(Bytes{1024}, host);
  const Tensor a = arena.take(DType::kUInt8, {1});
  const Tensor b = arena.take(DType::kFloat32, {3, 5});
  const Tensor c = arena.take(DType::kFloat64, {2});
  EXPECT_EQ(static_cast<char*>(b.raw()) - static_cast<char*>(a.raw()), 64);
  EXPECT_EQ(static_cast<char*>(c.raw()) - static_cast<char*>(b.raw()), 64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.raw()) % 64, 0u);
}

TEST(Arena, RewindGivesTheSameMemoryAgain) {
  HostAllocator host;
  Arena arena(Bytes{256}, host);
  arena.take(DType::kFloat32, {16});
  const Arena::Mark mark = arena.mark();
  void* first = arena.take(DType::kFloat32, {16}).raw();
  arena.rewind(mark);
  EXPECT_EQ(arena.take(DType::kFloat32, {32}).raw(), first);
  EXPECT_EQ(arena.used(), Bytes{192});
}

TEST(Arena, MarksAboveWhatIsInUseAreRefused) {
  Arena arena;
  const Arena::Mark start = arena.mark();
  arena.take(DType::kFloat32, {16});
  const Arena::Mark later = arena.mark();
  arena.rewind(start);
  EXPECT_TRUE(throws_error([&] { arena.rewind(later); }, ErrorKind::kInternal, {"rewound to 64"}));
}

TEST(Arena, ZeroCapacity) {
  HostAllocator host;
  Arena arena(Bytes{0}, host);
  EXPECT_EQ(arena.take(DType::kFloat32, {0}).numel(), 0);
  EXPECT_THROW(arena.take(DType::kFloat32, {1}), Error);
}

}  // namespace
}  // namespace k25
