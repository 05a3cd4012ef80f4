#pragma once
// What the CUDA tests of all ops share: a device and guarded tensors in its memory. Only targets
// that are built with CUDA include it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <memory>

#include "kernels/core/device.h"
#include "tests/kernels/op_test.h"

namespace k25::op_test {

/// Without a GPU a test is skipped, or fails where K25_REQUIRE_GPU is set (the CUDA test presets).
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      ASSERT_EQ(std::getenv("K25_REQUIRE_GPU"), nullptr) << "no GPU, and K25_REQUIRE_GPU is set";
      GTEST_SKIP() << "no GPU";
    }
    device_ = std::make_unique<CudaDevice>(0);
    cpu_ = make_context();
    gpu_ = make_context();
    device_->attach(gpu_);
  }

  Context& cpu() { return cpu_; }
  Context& gpu() { return gpu_; }

 private:
  std::unique_ptr<CudaDevice> device_;
  Context cpu_, gpu_;
};

/// A copy of a GuardedTensor in device memory, guard bands included. Pass it where the op expects a
/// view; fetch() waits for the op and brings the bytes back.
class OnGpu {
 public:
  OnGpu(const Context& ctx, const GuardedTensor& host)
      : ctx_(ctx), host_(host), allocator_(0), buffer_(Bytes{host.storage_bytes()}, allocator_) {
    copy_bytes(ctx, host.storage(), buffer_.data(), buffer_.size());
    synchronize(ctx);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  Tensor tensor() const {
    const Tensor t = host_.tensor();
    return t.at(static_cast<char*>(buffer_.data()) + host_.first_byte(), Device::kCuda);
  }
  operator Tensor() const { return tensor(); }       // NOLINT(google-explicit-constructor)
  operator ConstTensor() const { return tensor(); }  // NOLINT(google-explicit-constructor)

  /// Overwrites the host tensor with the device's bytes and returns it.
  const GuardedTensor& fetch() const {
    synchronize(ctx_);
    copy_bytes(ctx_, buffer_.data(), host_.storage(), buffer_.size());
    synchronize(ctx_);
    return host_;
  }

 private:
  const Context& ctx_;
  const GuardedTensor& host_;
  DeviceAllocator allocator_;
  Buffer buffer_;
};

/// Device scratch of exactly the planned size, filled with 0xCD.
class GpuScratch {
 public:
  GpuScratch(const Context& ctx, Bytes size) : allocator_(0), buffer_(size, allocator_) {
    fill_bytes(ctx, buffer_.data(), 0xCD, size);
  }
  Workspace workspace() const { return {buffer_.data(), buffer_.size()}; }

 private:
  DeviceAllocator allocator_;
  Buffer buffer_;
};

}  // namespace k25::op_test
