// Every collective on device memory against values computed here.

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "kernels/core/buffer.h"
#include "kernels/core/device.h"
#include "kernels/core/host_access.h"
#include "parallel/comm/cuda_backend.h"
#include "tests/mpi_main.h"

namespace k25::parallel {
namespace {

/// One per process: NCCL's start takes a second.
struct Gpu {
  Gpu() : device(test_world().local_rank()), allocator(test_world().local_rank()) {
    device.attach(context);
    link = make_cuda_link(test_world());
    comm = make_cuda_communicator(test_world().split(0, test_world().rank(), "gpus"), link);
  }
  CudaDevice device;
  DeviceAllocator allocator;
  Context context;
  std::shared_ptr<CudaLink> link;
  std::unique_ptr<Communicator> comm;
};

class CudaBackend : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (cuda_device_count() >= test_world().local_size()) gpu_ = new Gpu;
  }
  static void TearDownTestSuite() { delete gpu_; }
  void SetUp() override {
    if (gpu_ != nullptr) return;
    ASSERT_EQ(std::getenv("K25_REQUIRE_GPU"), nullptr) << "fewer GPUs than ranks";
    GTEST_SKIP() << "fewer GPUs than ranks";
  }

  Communicator& comm() { return *gpu_->comm; }
  Context& context() { return gpu_->context; }
  int rank() { return comm().rank(); }
  int size() { return comm().size(); }
  Call call(std::string_view name) {
    return {.name = name, .queue = Queue::on_stream(context().stream)};
  }
  /// Makes the context's stream wait, and then the host.
  void finish(Work work) {
    work.wait_on(Queue::on_stream(context().stream));
    wait_for_stream(*gpu_->link, context().stream);
  }
  Buffer upload(const std::vector<float>& values) {
    Buffer buffer(Bytes{static_cast<std::int64_t>(values.size()) * 4}, gpu_->allocator);
    write_from_host(context(), values.data(), view(buffer));
    return buffer;
  }
  static Tensor view(const Buffer& b) { return b.view(DType::kFloat32, {b.size().n / 4}); }
  std::vector<float> download(const Buffer& b) {
    std::vector<float> values(static_cast<std::size_t>(b.size().n / 4));
    read_to_host(context(), view(b), values.data());
    return values;
  }
  static float* floats(const Buffer& b) { return static_cast<float*>(b.data()); }

  static Gpu* gpu_;
};
Gpu* CudaBackend::gpu_ = nullptr;

/// What rank `from` has for rank `to` at `i`: sums of it depend on the order.
float value(int from, int to, std::int64_t i) {
  const auto x = static_cast<float>((from * 31 + to * 7 + i * 13) % 101);
  return (x - 50.0F) * (from % 2 == 0 ? 1.0F : 1e-4F);
}

constexpr std::int64_t kSizes[] = {1, 3, 4096, 100003};

TEST_F(CudaBackend, AllGather) {
  for (const std::int64_t n : kSizes) {
    std::vector<float> all(static_cast<std::size_t>(n * size()), -1.0F);
    for (std::int64_t i = 0; i < n; ++i) all[rank() * n + i] = value(rank(), 0, i);
    const Buffer buffer = upload(all);
    finish(comm().all_gather(call("gather"), {buffer.data(), Bytes{n * 4}}));
    const std::vector<float> got = download(buffer);
    for (int r = 0; r < size(); ++r) {
      for (std::int64_t i = 0; i < n; ++i)
        ASSERT_EQ(got[r * n + i], value(r, 0, i)) << r << ' ' << i;
    }
  }
}

TEST_F(CudaBackend, AllToAllAndWithSizes) {
  for (const std::int64_t n : kSizes) {
    std::vector<float> out;
    for (int to = 0; to < size(); ++to) {
      for (std::int64_t i = 0; i < n; ++i) out.push_back(value(rank(), to, i));
    }
    const Buffer send = upload(out), recv = upload(std::vector<float>(out.size(), -1.0F));
    finish(comm().all_to_all(call("exchange"), {send.data(), recv.data(), Bytes{n * 4}}));
    std::vector<float> got = download(recv);
    for (int from = 0; from < size(); ++from) {
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(got[from * n + i], value(from, rank(), i));
    }
    // Rank r sends n + r elements to everybody; the last rank sends nothing.
    const auto count = [&](int from) { return from == size() - 1 && size() > 1 ? 0 : n; };
    std::vector<Bytes> offsets, send_sizes, recv_sizes;
    for (int r = 0; r < size(); ++r) {
      offsets.push_back(Bytes{r * n * 4});
      send_sizes.push_back(Bytes{count(rank()) * 4});
      recv_sizes.push_back(Bytes{count(r) * 4});
    }
    const Buffer again = upload(std::vector<float>(out.size(), -1.0F));
    finish(comm().all_to_all_v(call("exchange v"), {.send = send.data(),
                                                    .send_offsets = offsets,
                                                    .send_sizes = send_sizes,
                                                    .recv = again.data(),
                                                    .recv_offsets = offsets,
                                                    .recv_sizes = recv_sizes}));
    got = download(again);
    for (int from = 0; from < size(); ++from) {
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(got[from * n + i], i < count(from) ? value(from, rank(), i) : -1.0F);
      }
    }
  }
}

TEST_F(CudaBackend, OrderedReductionIsTheLeftFold) {
  for (const std::int64_t n : kSizes) {
    for (const bool reversed : {false, true}) {
      std::vector<int> slices;
      for (int r = 0; r < size(); ++r) slices.push_back(reversed ? size() - 1 - r : r);
      std::vector<float> in;
      for (int s = 0; s < size(); ++s) {
        for (std::int64_t i = 0; i < n; ++i) in.push_back(value(rank(), s, i));
      }
      const Buffer input = upload(in);
      const Buffer sum = upload(std::vector<float>(static_cast<std::size_t>(n), 0.375F));
      const Buffer scratch(Bytes{n * size() * 4}, gpu_->allocator);
      finish(comm().reduce_scatter(call("reduce"), {.input = floats(input),
                                                    .accumulator = floats(sum),
                                                    .per_slice = Elems{n},
                                                    .scratch = floats(scratch),
                                                    .slice_of_rank = slices}));
      const std::vector<float> got = download(sum);
      for (std::int64_t i = 0; i < n; ++i) {
        float want = 0.375F;
        for (int r = 0; r < size(); ++r) want += value(r, slices[rank()], i);
        ASSERT_EQ(got[i], want) << i;
      }
    }
  }
}

TEST_F(CudaBackend, LibraryReductionAgreesToRounding) {
  for (const std::int64_t n : kSizes) {
    for (const bool shared : {false, true}) {  // all ranks own slice 0: the replicate axis
      std::vector<int> slices(static_cast<std::size_t>(size()), 0);
      for (int r = 0; !shared && r < size(); ++r) slices[static_cast<std::size_t>(r)] = r;
      std::vector<float> in;
      for (int s = 0; s < size(); ++s) {
        for (std::int64_t i = 0; i < n; ++i) in.push_back(value(rank(), s, i));
      }
      const Buffer input = upload(in);
      const Buffer sum = upload(std::vector<float>(static_cast<std::size_t>(n), 2.0F));
      const Buffer scratch(Bytes{n * 4}, gpu_->allocator);
      finish(comm().reduce_scatter(call("reduce"), {.input = floats(input),
                                                    .accumulator = floats(sum),
                                                    .per_slice = Elems{n},
                                                    .scratch = floats(scratch),
                                                    .mode = ReduceMode::kLibrary,
                                                    .slice_of_rank = slices}));
      const std::vector<float> got = download(sum);
      for (std::int64_t i = 0; i < n; ++i) {
        double want = 2.0;
        for (int r = 0; r < size(); ++r) want += value(r, slices[rank()], i);
        ASSERT_NEAR(got[i], want, 1e-4) << i;
      }
    }
  }
}

TEST_F(CudaBackend, BroadcastAndRing) {
  const std::int64_t n = 5000;
  for (int root = 0; root < size(); ++root) {
    std::vector<float> values(n, static_cast<float>(rank()));
    const Buffer buffer = upload(values);
    finish(comm().broadcast(call("broadcast"), {buffer.data(), buffer.size(), root}));
    EXPECT_EQ(download(buffer), std::vector<float>(n, static_cast<float>(root)));
  }
  const Buffer send = upload(std::vector<float>(n, static_cast<float>(rank())));
  const Buffer recv = upload(std::vector<float>(n, -1.0F));
  finish(comm().ring_exchange(call("ring"), {send.data(), recv.data(), send.size()}));
  const int from = (rank() + size() - 1) % size();
  EXPECT_EQ(download(recv), std::vector<float>(n, static_cast<float>(from)));
}

TEST_F(CudaBackend, GroupsOrderAndHostCallsMix) {
  const std::int64_t n = 1000;
  std::vector<float> all(static_cast<std::size_t>(n * size()), -1.0F);
  for (std::int64_t i = 0; i < n; ++i) all[rank() * n + i] = static_cast<float>(rank());
  const Buffer a = upload(all), b = upload(all);
  std::int64_t on_host = rank();
  comm().group_begin();
  comm().all_gather(call("a"), {a.data(), Bytes{n * 4}});
  comm().all_reduce_small({.name = "host"}, {.integers = &on_host, .count = 1});
  comm().all_gather(call("b"), {b.data(), Bytes{n * 4}});
  finish(comm().group_end());
  EXPECT_EQ(on_host, size() * (size() - 1) / 2);
  for (const Buffer* buffer : {&a, &b}) {
    const std::vector<float> got = download(*buffer);
    for (int r = 0; r < size(); ++r) ASSERT_EQ(got[r * n], static_cast<float>(r));
  }
}

TEST_F(CudaBackend, ACallSeesWhatTheStreamDidBefore) {
  // The stream's fill must come before the gather, though nothing on the host waits.
  const std::int64_t n = 1 << 22;
  const Buffer buffer(Bytes{n * size()}, gpu_->allocator);
  for (int round = 0; round < 20; ++round) {
    const auto byte = static_cast<std::uint8_t>(1 + round + rank());
    fill_bytes(context(), static_cast<char*>(buffer.data()) + rank() * n, byte, Bytes{n});
    Work work = comm().all_gather(call("fill"), {buffer.data(), Bytes{n}});
    work.wait_on(Queue::on_stream(context().stream));
  }
  std::vector<std::uint8_t> got(static_cast<std::size_t>(n * size()));
  read_to_host(context(), buffer.view(DType::kUInt8, {buffer.size().n}), got.data());
  for (int r = 0; r < size(); ++r) {
    for (std::int64_t i = 0; i < n; i += 4099) ASSERT_EQ(got[r * n + i], 20 + r);
  }
}

}  // namespace
}  // namespace k25::parallel
