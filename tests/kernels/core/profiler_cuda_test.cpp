// Ranges on a GPU: the device's own time, between events.
#include "kernels/core/profiler.h"
#include "tests/kernels/cuda_test.h"

namespace k25 {
namespace {

using ProfilerCudaTest = op_test::CudaTest;

TEST_F(ProfilerCudaTest, TheDeviceIsTimedBesideTheHost) {
  DeviceAllocator allocator(0);
  const Buffer buffer(Bytes{std::int64_t{1} << 30}, allocator);
  Context context = gpu();
  Profiler profiler(context.stream);
  profiler.start();
  context.profiler = &profiler;
  for (int step = 0; step < 3; ++step) {
    const ProfileRange outer(context, "step");
    for (int i = 0; i < 2; ++i) {
      const ProfileRange inner(context, "layer", i);
      for (int again = 0; again <= 9 * i; ++again) {
        fill_bytes(context, buffer.data(), 1, buffer.size());
      }
    }
  }
  context.profiler = nullptr;
  profiler.stop();
  const std::vector<Profiler::Row>& rows = profiler.rows();
  ASSERT_EQ(rows.size(), 3u);
  for (const Profiler::Row& row : rows) {
    EXPECT_EQ(row.count, 3) << row.range;
    ASSERT_TRUE(row.device_seconds.has_value()) << row.range;
  }
  EXPECT_EQ(rows[2].range, "step/layer 1");
  // In order on one stream: the outer range holds both, and ten fills take longer than one.
  EXPECT_GT(*rows[1].device_seconds, 0.0);
  EXPECT_GT(*rows[2].device_seconds, *rows[1].device_seconds);
  EXPECT_GE(*rows[0].device_seconds * 1.001, *rows[1].device_seconds + *rows[2].device_seconds);
}

}  // namespace
}  // namespace k25
