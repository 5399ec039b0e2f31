// Tensors and operations of a cuDNN graph, one call each.
#pragma once

#include <cudnn_graph.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cuda/cudnn/cudnn_api.h"
#include "kernels/cuda/cudnn/descriptor.h"

namespace baton::kernels::cuda {

// Four sizes or strides in elements, as all of cuDNN's attention tensors have.
using Dims4 = std::array<int64_t, 4>;

// Adds to one graph; the first failure is kept and given by Finish. Not thread-safe.
class CudnnGraphBuilder {
 public:
  // A tensor of this graph.
  struct Tensor {
    size_t index = 0;
  };

  explicit CudnnGraphBuilder(std::shared_ptr<const CudnnApi> api);

  // Memory that the caller gives when the graph runs, known by `id`, below 1,000.
  // `offsets`: where the sequences of a ragged tensor begin.
  Tensor Input(int64_t id,
               const Dims4& dims,
               const Dims4& strides,
               cudnnDataType_t type,
               std::optional<Tensor> offsets = std::nullopt);
  // One number on the host.
  Tensor Scalar(int64_t id, cudnnDataType_t type);
  // What stays within the graph.
  Tensor Virtual(const Dims4& dims, const Dims4& strides, cudnnDataType_t type);

  // c = a b with fp32 sums. The sizes that are really there, by sequence, where they are not all.
  struct MatmulSizes {
    std::optional<Tensor> m = std::nullopt;
    std::optional<Tensor> n = std::nullopt;
    std::optional<Tensor> k = std::nullopt;
  };
  void Matmul(Tensor a, Tensor b, Tensor c, const MatmulSizes& sizes);
  // y = mode(x), or of x and b; `select`: y = select ? x : b. `axis`: of GEN_INDEX.
  struct PointwiseInputs {
    Tensor x;
    std::optional<Tensor> b = std::nullopt;
    std::optional<Tensor> select = std::nullopt;
    int64_t axis = -1;
  };
  void Pointwise(cudnnPointwiseMode_t mode,
                 const PointwiseInputs& inputs,
                 Tensor y,
                 cudnnDataType_t math = CUDNN_DATA_FLOAT);
  void Reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  // y = the pages of `container`, [pages, heads, tokens of a page, elements], that each sequence's
  // row of `page_table`, [batch, 1, pages of a sequence, 1], names, as far as `tokens`, [batch, 1,
  // 1, 1], goes.
  void LoadPages(Tensor container, Tensor page_table, Tensor tokens, Tensor y);

  // The operation graph; `parts` gets what it is made of, to be kept as long.
  absl::StatusOr<CudnnDescriptor> Finish(std::vector<CudnnDescriptor>& parts);

 private:
  struct TensorSpec {
    int64_t id = 0;
    bool is_virtual = false;
    bool by_value = false;
    std::optional<Tensor> offsets = std::nullopt;
  };
  Tensor AddTensor(const TensorSpec& spec,
                   const Dims4& dims,
                   const Dims4& strides,
                   cudnnDataType_t type);
  // Finalizes and keeps; its index.
  size_t Keep(CudnnDescriptor descriptor);
  void KeepOperation(CudnnDescriptor operation);
  const CudnnDescriptor& at(Tensor tensor) const { return parts_[tensor.index]; }

  std::shared_ptr<const CudnnApi> api_;
  absl::Status status_;
  int64_t next_virtual_id_;
  std::vector<CudnnDescriptor> parts_;
  std::vector<size_t> operations_;
};

}  // namespace baton::kernels::cuda
