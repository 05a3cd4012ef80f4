#include "kernels/core/device.h"
#include "tests/kernels/cuda_test.h"

namespace k25 {
namespace {

using op_test::GuardedTensor;
using op_test::OnGpu;
using op_test::throws_error;
using DeviceCudaTest = op_test::CudaTest;

TEST_F(DeviceCudaTest, CopiesThereAndBack) {
  const GuardedTensor x = op_test::random_tensor("x", DType::kFloat32, {3, 1000});
  GuardedTensor y(DType::kFloat32, {3, 1000});
  const OnGpu from(gpu(), x), to(gpu(), y);
  copy_tensor(gpu(), from, to);
  EXPECT_EQ(to.fetch().bits(), x.bits());
  EXPECT_TRUE(y.guards_intact());
}

TEST_F(DeviceCudaTest, MemoryIsZeroedCountedAndAligned) {
  DeviceAllocator allocator(0);
  {
    const Buffer buffer(Bytes{1000}, allocator);
    EXPECT_EQ(allocator.live().n, 1000);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0u);
    std::vector<std::uint8_t> bytes(1000, 7);
    copy_bytes(gpu(), buffer.data(), bytes.data(), buffer.size());
    synchronize(gpu());
    EXPECT_EQ(bytes, std::vector<std::uint8_t>(1000, 0));
  }
  EXPECT_EQ(allocator.live().n, 0);
}

TEST_F(DeviceCudaTest, PinnedMemoryIsHostMemory) {
  PinnedAllocator allocator;
  const Buffer buffer(Bytes{64}, allocator);
  EXPECT_EQ(buffer.device(), Device::kCpu);
  static_cast<char*>(buffer.data())[63] = 1;
}

TEST_F(DeviceCudaTest, RefusesWhatIsNotThere) {
  const auto usage = ErrorKind::kUsage;
  EXPECT_TRUE(throws_error([] { const CudaDevice device(cuda_device_count()); }, usage,
                           {"this process sees", "CUDA_VISIBLE_DEVICES"}));
  DeviceAllocator allocator(0);
  EXPECT_TRUE(throws_error([&] { const Buffer b(Bytes{std::int64_t{1} << 50}, allocator); }, usage,
                           {"GPU 0", "1125899906842624 bytes", "are free"}));
  // The refusal leaves no error behind for the next call.
  const Buffer small(Bytes{64}, allocator);
  EXPECT_NE(small.data(), nullptr);
}

}  // namespace
}  // namespace k25
