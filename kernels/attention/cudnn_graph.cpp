#include "kernels/attention/cudnn_graph.h"

#include <algorithm>
#include <source_location>

#include "kernels/core/cuda_check.h"

namespace k25::kernels {
namespace {

void check(cudnnStatus_t status, const char* call,
           std::source_location where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  cuda_failed(call, std::string(cudnnGetErrorString(status)) + ": " + text.data(), where);
}

CudnnShape packed_strides(const CudnnShape& shape) {
  return {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
}

std::int64_t count_of(const CudnnDescriptor& from, cudnnBackendAttributeName_t name) {
  std::int64_t count = 0;
  const cudnnStatus_t status =
      cudnnBackendGetAttribute(from.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr);
  return status == CUDNN_STATUS_SUCCESS ? count : 0;
}

/// Fills in `engine`, made as CUDNN_BACKEND_ENGINE_DESCRIPTOR.
cudnnBackendDescriptor_t engine_of(const CudnnDescriptor& config, const CudnnDescriptor& engine) {
  cudnnBackendDescriptor_t into = engine.get();
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &into),
        "cudnnBackendGetAttribute(engine)");
  return into;
}

/// False where the engine says that its results may differ from run to run.
bool deterministic(const CudnnDescriptor& config) {
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  const cudnnBackendDescriptor_t into = engine_of(config, engine);
  std::int64_t count = 0;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  check(cudnnBackendGetAttribute(into, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 static_cast<std::int64_t>(notes.size()), &count, notes.data()),
        "cudnnBackendGetAttribute(numerical notes)");
  return std::find(notes.begin(), notes.begin() + count, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ==
         notes.begin() + count;
}

/// What names the engine of a configuration.
CudnnEngine identity_of(const CudnnDescriptor& config) {
  CudnnEngine identity;
  const CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(engine_of(config, engine), CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                 CUDNN_TYPE_INT64, 1, &count, &identity.index),
        "cudnnBackendGetAttribute(engine index)");
  const std::int64_t offered = count_of(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  if (offered == 0) return identity;
  std::vector<std::unique_ptr<CudnnDescriptor>> choices;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < offered; ++i) {
    choices.push_back(std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    raw.push_back(choices.back()->get());
  }
  std::int64_t knobs = 0;
  check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &knobs, raw.data()),
        "cudnnBackendGetAttribute(knob choices)");
  for (std::int64_t i = 0; i < knobs; ++i) {
    cudnnBackendKnobType_t type{};
    std::int64_t value = 0;
    const cudnnBackendDescriptor_t choice = raw[static_cast<std::size_t>(i)];
    check(cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                                   1, &count, &type),
          "cudnnBackendGetAttribute(knob type)");
    check(cudnnBackendGetAttribute(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                                   &count, &value),
          "cudnnBackendGetAttribute(knob value)");
    identity.knobs.emplace_back(static_cast<std::int64_t>(type), value);
  }
  return identity;
}

}  // namespace

CudnnShape broadcast(const CudnnShape& a, const CudnnShape& b) {
  CudnnShape shape{};
  for (std::size_t i = 0; i < shape.size(); ++i) shape[i] = std::max(a[i], b[i]);
  return shape;
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &descriptor_), "cudnnBackendCreateDescriptor");
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          std::int64_t count, const void* values) {
  check(cudnnBackendSetAttribute(descriptor_, name, type, count, values),
        "cudnnBackendSetAttribute");
}

void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& other) {
  const cudnnBackendDescriptor_t descriptor = other.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
}

void CudnnDescriptor::finalize() {
  check(cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

bool CudnnDescriptor::try_finalize() {
  return cudnnBackendFinalize(descriptor_) == CUDNN_STATUS_SUCCESS;
}

CudnnDescriptor& CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  return *owned_.emplace_back(std::make_shared<CudnnDescriptor>(type));
}

CudnnDescriptor& CudnnGraph::make_operation(cudnnBackendDescriptorType_t type) {
  return *operations_.emplace_back(std::make_shared<CudnnDescriptor>(type));
}

CudnnTensor CudnnGraph::tensor(std::int64_t id, cudnnDataType_t dtype, const CudnnShape& shape,
                               const CudnnShape& strides, std::int64_t alignment, bool is_virtual,
                               bool by_value) {
  CudnnDescriptor& t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.data());
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  if (by_value) t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  t.finalize();
  return {&t, shape};
}

CudnnTensor CudnnGraph::operand(std::int64_t id, cudnnDataType_t dtype, const CudnnShape& shape,
                                const CudnnShape& strides) {
  return tensor(id, dtype, shape, strides, dtype == CUDNN_DATA_BFLOAT16 ? 16 : 4, false, false);
}

CudnnTensor CudnnGraph::scalar(std::int64_t id) {
  return tensor(id, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, 4, false, true);
}

CudnnTensor CudnnGraph::value(cudnnDataType_t dtype, const CudnnShape& shape) {
  return value(dtype, shape, packed_strides(shape));
}

CudnnTensor CudnnGraph::value(cudnnDataType_t dtype, const CudnnShape& shape,
                              const CudnnShape& strides) {
  return tensor(next_value_++, dtype, shape, strides, 16, true, false);
}

void CudnnGraph::add(const Pointwise& what, const CudnnTensor& x, const CudnnTensor* b,
                     const CudnnTensor* mask, const CudnnTensor& y) {
  CudnnDescriptor& how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &what.mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &what.arithmetic);
  if (what.axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &what.axis);
  how.finalize();
  CudnnDescriptor& op = make_operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.descriptor);
  if (b != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->descriptor);
  if (mask != nullptr) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *mask->descriptor);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *y.descriptor);
  op.finalize();
}

CudnnTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x) {
  const CudnnTensor y = value(CUDNN_DATA_FLOAT, x.shape);
  add({mode}, x, nullptr, nullptr, y);
  return y;
}

CudnnTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const CudnnTensor& x,
                                  const CudnnTensor& b) {
  const CudnnTensor y = value(CUDNN_DATA_FLOAT, broadcast(x.shape, b.shape));
  add({mode}, x, &b, nullptr, y);
  return y;
}

void CudnnGraph::pointwise_into(cudnnPointwiseMode_t mode, const CudnnTensor& x,
                                const CudnnTensor* b, const CudnnTensor& y) {
  add({mode}, x, b, nullptr, y);
}

CudnnTensor CudnnGraph::index(const CudnnTensor& x, std::int64_t axis, cudnnDataType_t arithmetic) {
  const CudnnTensor y = value(CUDNN_DATA_INT32, x.shape);
  add({CUDNN_POINTWISE_GEN_INDEX, arithmetic, axis}, x, nullptr, nullptr, y);
  return y;
}

CudnnTensor CudnnGraph::compare(cudnnPointwiseMode_t mode, const CudnnTensor& x,
                                const CudnnTensor& b) {
  const CudnnTensor y = value(CUDNN_DATA_BOOLEAN, broadcast(x.shape, b.shape));
  add({mode, CUDNN_DATA_BOOLEAN}, x, &b, nullptr, y);
  return y;
}

CudnnTensor CudnnGraph::select(const CudnnTensor& x, const CudnnTensor& other,
                               const CudnnTensor& mask) {
  const CudnnTensor y = value(CUDNN_DATA_FLOAT, x.shape);
  add({CUDNN_POINTWISE_BINARY_SELECT}, x, &other, &mask, y);
  return y;
}

void CudnnGraph::matmul(const CudnnTensor& a, const CudnnTensor& b, const CudnnTensor& c) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  CudnnDescriptor& how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  how.finalize();
  CudnnDescriptor& op = make_operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.descriptor);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.descriptor);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *c.descriptor);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  op.finalize();
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t operation, const CudnnTensor& x,
                        const CudnnTensor& y) {
  const cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT;
  CudnnDescriptor& how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &arithmetic);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
  how.finalize();
  CudnnDescriptor& op = make_operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.descriptor);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *y.descriptor);
  op.finalize();
}

void CudnnGraph::reshape(const CudnnTensor& x, const CudnnTensor& y) {
  CudnnDescriptor& op = make_operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.descriptor);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *y.descriptor);
  op.finalize();
}

bool CudnnGraph::take_plan(cudnnHandle_t handle, const CudnnDescriptor& config, Bytes limit) {
  auto plan = std::make_shared<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (cudnnBackendFinalize(plan->get()) != CUDNN_STATUS_SUCCESS) return false;
  std::int64_t bytes = 0, count = 0;
  check(cudnnBackendGetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                 CUDNN_TYPE_INT64, 1, &count, &bytes),
        "cudnnBackendGetAttribute(workspace)");
  if (bytes > limit.n) return false;
  plan_ = std::move(plan);
  return true;
}

const CudnnDescriptor* CudnnGraph::end_description(cudnnHandle_t handle) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Owned& op : operations_) raw.push_back(op->get());
  CudnnDescriptor& graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(raw.size()), raw.data());
  return graph.try_finalize() ? &graph : nullptr;
}

std::vector<const CudnnDescriptor*> CudnnGraph::offered_configs(cudnnHandle_t handle) {
  const CudnnDescriptor* const graph = end_description(handle);
  if (graph == nullptr) return {};
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  CudnnDescriptor& heuristic = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (!heuristic.try_finalize()) return {};

  const std::int64_t offered = count_of(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  std::vector<const CudnnDescriptor*> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < offered; ++i) {
    configs.push_back(&make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configs.back()->get());
  }
  std::int64_t count = 0;
  if (offered == 0 || cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                               CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &count,
                                               raw.data()) != CUDNN_STATUS_SUCCESS) {
    return {};
  }
  configs.resize(static_cast<std::size_t>(count));
  return configs;
}

std::optional<CudnnEngine> CudnnGraph::choose_engine(cudnnHandle_t handle, Bytes limit) {
  for (const CudnnDescriptor* config : offered_configs(handle)) {
    if (deterministic(*config) && take_plan(handle, *config, limit)) return identity_of(*config);
  }
  return std::nullopt;
}

// A config built anew from an engine's number and knobs did not give the bits of the one that the
// heuristic had given, so the heuristic is asked again: one library on one GPU answers alike.
bool CudnnGraph::take_engine(cudnnHandle_t handle, const CudnnEngine& wanted, Bytes limit) {
  for (const CudnnDescriptor* config : offered_configs(handle)) {
    if (identity_of(*config) != wanted) continue;
    if (deterministic(*config) && take_plan(handle, *config, limit)) return true;
  }
  return false;
}

void CudnnGraph::run(cudnnHandle_t handle, std::span<const CudnnBinding> bindings,
                     void* workspace) const {
  std::array<std::int64_t, kMaxOperands> ids{};
  std::array<void*, kMaxOperands> data{};
  K25_CHECK(bindings.size() <= ids.size(), "attention: too many operands of one cuDNN graph");
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    ids[i] = bindings[i].id;
    data[i] = bindings[i].data;
  }
  const auto count = static_cast<std::int64_t>(bindings.size());
  CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  check(cudnnBackendExecute(handle, plan_->get(), pack.get()), "cudnnBackendExecute");
}

}  // namespace k25::kernels
