#include "kernels/cuda/cudnn/graph_builder.h"

#include <cudnn_graph.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"

namespace baton::kernels::cuda {
namespace {

// Above what callers name.
constexpr int64_t kFirstVirtualId = 1000;
// cuDNN's attention kernels read 16 bytes at a time.
constexpr int64_t kAlignmentBytes = 16;

}  // namespace

CudnnGraphBuilder::CudnnGraphBuilder(std::shared_ptr<const CudnnApi> api)
    : api_(std::move(api)), next_virtual_id_(kFirstVirtualId) {}

size_t CudnnGraphBuilder::Keep(CudnnDescriptor descriptor) {
  const absl::Status finalized = descriptor.Finalize();
  status_.Update(finalized);
  parts_.push_back(std::move(descriptor));
  return parts_.size() - 1;
}

void CudnnGraphBuilder::KeepOperation(CudnnDescriptor operation) {
  operations_.push_back(Keep(std::move(operation)));
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::AddTensor(const TensorSpec& spec,
                                                       const Dims4& dims,
                                                       const Dims4& strides,
                                                       cudnnDataType_t type) {
  CudnnDescriptor tensor(api_, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  tensor.SetInt64s(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  tensor.SetInt64s(CUDNN_ATTR_TENSOR_STRIDES, strides);
  tensor.SetInt64(CUDNN_ATTR_TENSOR_UNIQUE_ID, spec.id);
  tensor.SetInt64(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignmentBytes);
  tensor.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, spec.is_virtual);
  tensor.Set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, spec.by_value);
  if (spec.offsets.has_value()) {
    tensor.SetDescriptor(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, at(*spec.offsets));
  }
  return {Keep(std::move(tensor))};
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::Input(int64_t id,
                                                   const Dims4& dims,
                                                   const Dims4& strides,
                                                   cudnnDataType_t type,
                                                   std::optional<Tensor> offsets) {
  return AddTensor({.id = id, .offsets = offsets}, dims, strides, type);
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::Scalar(int64_t id, cudnnDataType_t type) {
  constexpr Dims4 kOne = {1, 1, 1, 1};
  return AddTensor({.id = id, .by_value = true}, kOne, kOne, type);
}

CudnnGraphBuilder::Tensor CudnnGraphBuilder::Virtual(const Dims4& dims,
                                                     const Dims4& strides,
                                                     cudnnDataType_t type) {
  return AddTensor({.id = next_virtual_id_++, .is_virtual = true}, dims, strides, type);
}

void CudnnGraphBuilder::Matmul(Tensor a, Tensor b, Tensor c, const MatmulSizes& sizes) {
  CudnnDescriptor matmul(api_, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  matmul.Set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const CudnnDescriptor& kind = parts_[Keep(std::move(matmul))];
  CudnnDescriptor operation(api_, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c));
  if (sizes.m.has_value()) {
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, at(*sizes.m));
  }
  if (sizes.n.has_value()) {
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, at(*sizes.n));
  }
  if (sizes.k.has_value()) {
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, at(*sizes.k));
  }
  KeepOperation(std::move(operation));
}

void CudnnGraphBuilder::Pointwise(cudnnPointwiseMode_t mode,
                                  const PointwiseInputs& inputs,
                                  Tensor y,
                                  cudnnDataType_t math) {
  CudnnDescriptor pointwise(api_, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  pointwise.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, math);
  if (inputs.axis >= 0) {
    pointwise.SetInt64(CUDNN_ATTR_POINTWISE_AXIS, inputs.axis);
  }
  const CudnnDescriptor& kind = parts_[Keep(std::move(pointwise))];
  CudnnDescriptor operation(api_, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(inputs.x));
  if (inputs.b.has_value()) {
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(*inputs.b));
  }
  if (inputs.select.has_value()) {
    operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(*inputs.select));
  }
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y));
  KeepOperation(std::move(operation));
}

void CudnnGraphBuilder::Reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  CudnnDescriptor reduction(api_, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  reduction.Set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op);
  reduction.Set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const CudnnDescriptor& kind = parts_[Keep(std::move(reduction))];
  CudnnDescriptor operation(api_, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y));
  KeepOperation(std::move(operation));
}

void CudnnGraphBuilder::LoadPages(Tensor container, Tensor page_table, Tensor tokens, Tensor y) {
  CudnnDescriptor operation(api_, CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR);
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC, at(container));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_PAGE_TABLE_DESC, at(page_table));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_SEQUENCE_DESC, at(tokens));
  operation.SetDescriptor(CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC, at(y));
  KeepOperation(std::move(operation));
}

absl::StatusOr<CudnnDescriptor> CudnnGraphBuilder::Finish(std::vector<CudnnDescriptor>& parts) {
  if (!status_.ok()) {
    return status_;
  }
  CudnnDescriptor graph(api_, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  std::vector<const CudnnDescriptor*> operations;
  operations.reserve(operations_.size());
  for (const size_t index : operations_) {
    operations.push_back(&parts_[index]);
  }
  graph.SetDescriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  if (absl::Status status = graph.Finalize(); !status.ok()) {
    return status;
  }
  parts = std::move(parts_);
  return graph;
}

}  // namespace baton::kernels::cuda
