#pragma once
// Private to attention: a graph of cuDNN operations through the library's C interface, and the plan
// that runs it. The graph owns every descriptor, in the order in which they were made.
//
// Operands are memory that run() is handed, by number; values exist inside the library's kernel
// only. Arithmetic is fp32. Shapes are [B, H, rows, columns]; an operand of extent 1 is repeated.

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention_engines.h"
#include "kernels/core/dtype.h"

namespace k25::kernels {

using CudnnShape = std::array<std::int64_t, 4>;

class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor() { cudnnBackendDestroyDescriptor(descriptor_); }
  CudnnDescriptor(const CudnnDescriptor&) = delete;
  CudnnDescriptor& operator=(const CudnnDescriptor&) = delete;

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other);
  void finalize();
  [[nodiscard]] bool try_finalize();

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// A tensor of one graph.
struct CudnnTensor {
  const CudnnDescriptor* descriptor = nullptr;
  CudnnShape shape{};
};

/// What run() binds to the operand with number `id`. Of a scalar: a float in host memory.
struct CudnnBinding {
  std::int64_t id = 0;
  void* data = nullptr;
};

class CudnnGraph {
 public:
  static constexpr std::int64_t kMaxOperands = 16;  ///< numbered from 1

  CudnnTensor operand(std::int64_t id, cudnnDataType_t dtype, const CudnnShape& shape,
                      const CudnnShape& strides);
  CudnnTensor scalar(std::int64_t id);
  CudnnTensor value(cudnnDataType_t dtype, const CudnnShape& shape);
  CudnnTensor value(cudnnDataType_t dtype, const CudnnShape& shape, const CudnnShape& strides);

  CudnnTensor pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x);
  CudnnTensor pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b);
  /// As above into `y`, which gives the dtype.
  void pointwise_into(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor* b,
                      const CudnnTensor& y);
  /// The position of each element of x along `axis`.
  CudnnTensor index(const CudnnTensor& x, std::int64_t axis, cudnnDataType_t arithmetic);
  CudnnTensor compare(cudnnPointwiseMode_t mode, const CudnnTensor& x, const CudnnTensor& b);
  /// x where the mask is true, `other` elsewhere.
  CudnnTensor select(const CudnnTensor& x, const CudnnTensor& other, const CudnnTensor& mask);
  void matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c);
  /// Over the dimensions in which y has extent 1, or heads in groups.
  void reduce(cudnnReduceTensorOp_t operation, const CudnnTensor& x, const CudnnTensor& y);
  void reshape(const CudnnTensor& x, const CudnnTensor& y);

  /// Ends the description and takes the first engine of the library's heuristic that says of itself
  /// that it is deterministic and that needs no more than `limit` bytes of workspace. Absent: there
  /// is none. Compiles; allocates.
  std::optional<CudnnEngine> choose_engine(cudnnHandle_t handle, Bytes limit);
  /// Ends the description and takes `engine`, which choose_engine() of the same description,
  /// library and GPU returned. False: the library does not offer it, or it does not meet the
  /// conditions above.
  bool take_engine(cudnnHandle_t handle, const CudnnEngine& engine, Bytes limit);
  /// Enqueues on the handle's stream.
  void run(cudnnHandle_t handle, std::span<const CudnnBinding> bindings, void* workspace) const;

  const std::vector<std::shared_ptr<CudnnDescriptor>>& operations() const { return operations_; }

 private:
  using Owned = std::shared_ptr<CudnnDescriptor>;

  CudnnDescriptor& make(cudnnBackendDescriptorType_t type);
  /// Ends the description: what the library's heuristic offers for it, best first.
  std::vector<const CudnnDescriptor*> offered_configs(cudnnHandle_t handle);
  CudnnDescriptor& make_operation(cudnnBackendDescriptorType_t type);
  CudnnTensor tensor(std::int64_t id, cudnnDataType_t dtype, const CudnnShape& shape,
                     const CudnnShape& strides, std::int64_t alignment, bool is_virtual,
                     bool by_value);
  struct Pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
    std::int64_t axis = -1;
  };
  void add(const Pointwise& what, const CudnnTensor& x, const CudnnTensor* b,
           const CudnnTensor* mask, const CudnnTensor& y);
  /// Null: the library does not take the operations.
  const CudnnDescriptor* end_description(cudnnHandle_t handle);
  bool take_plan(cudnnHandle_t handle, const CudnnDescriptor& config, Bytes limit);

  std::int64_t next_value_ = kMaxOperands + 1;
  std::vector<Owned> owned_, operations_;
  Owned plan_;
};

/// Extents of a pointwise result: the larger of each pair.
CudnnShape broadcast(const CudnnShape& a, const CudnnShape& b);

}  // namespace k25::kernels
