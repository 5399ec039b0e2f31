#include "common/worker/sequence_runner.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"

namespace baton::worker {

absl::StatusOr<std::unique_ptr<SequenceRunner>> SequenceRunner::Create(
    const checkpoint::Checkpoint& checkpoint,
    std::string_view device,
    int threads,
    kernels::DType dtype,
    int64_t max_tokens) {
  auto runner = std::unique_ptr<SequenceRunner>(new SequenceRunner(max_tokens));
  BATON_ASSIGN_OR_RETURN(runner->backend_, kernels::Backend::Open(device, threads));
  const kernels::Backend& backend = *runner->backend_;
  const model::ModelOptions options = {
      .max_step_rows = kStepRows, .max_logit_rows = kStepRows, .weight_dtype = dtype};
  BATON_ASSIGN_OR_RETURN(runner->model_,
                         model::Model::Load(checkpoint, backend.ops(), backend.exec(), options));
  const model::KvShape shape = runner->model_->kv_shape();
  kernels::DensePageLayout& layout = runner->pages_.layout;
  layout.kv_heads = shape.kv_heads;
  layout.head_dim = shape.head_dim;
  layout.dtype = dtype;
  const auto num_pages =
      static_cast<size_t>(layout.pages_for(max_tokens)) * static_cast<size_t>(shape.layers);
  BATON_ASSIGN_OR_RETURN(runner->page_memory_,
                         backend.exec().memory->Allocate(num_pages * layout.stride_bytes()));
  runner->pages_.base = runner->page_memory_.data();
  runner->page_table_.resize(num_pages);
  std::iota(runner->page_table_.begin(), runner->page_table_.end(), 0);
  return runner;
}

absl::Status SequenceRunner::Append(std::span<const int32_t> token_ids, std::span<float> logits) {
  const auto vocab = static_cast<size_t>(config().vocab_size);
  if (num_tokens_ + static_cast<int64_t>(token_ids.size()) > max_tokens_) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", max_tokens_, " tokens"));
  }
  if (logits.size() != token_ids.size() * vocab) {
    return absl::InvalidArgumentError("logits has the wrong size");
  }
  for (size_t begin = 0; begin < token_ids.size(); begin += kStepRows) {
    const size_t count = std::min<size_t>(kStepRows, token_ids.size() - begin);
    BATON_RETURN_IF_ERROR(
        Step(token_ids.subspan(begin, count), logits.subspan(begin * vocab, count * vocab)));
  }
  return absl::OkStatus();
}

absl::Status SequenceRunner::Step(std::span<const int32_t> token_ids, std::span<float> logits) {
  const auto rows = static_cast<int32_t>(token_ids.size());
  std::vector<int32_t> positions(token_ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(num_tokens_));
  std::vector<int32_t> all_rows(token_ids.size());
  std::iota(all_rows.begin(), all_rows.end(), 0);
  const model::SequenceSlice sequence = {.row_begin = 0, .row_count = rows};
  const kv::DenseTable table = {.data = page_table_.data(),
                                .stride = pages_.layout.pages_for(max_tokens_),
                                .layers = model_->kv_shape().layers};
  kv::DenseStepKv kv(backend_->ops(), backend_->exec(), pages_, std::span(&table, 1));
  model::ForwardBatch batch;
  batch.token_ids = token_ids;
  batch.positions = positions;
  batch.sequences = std::span(&sequence, 1);
  batch.survivors = all_rows;
  batch.logit_rows = all_rows;
  batch.kv = &kv;
  BATON_RETURN_IF_ERROR(model_->Forward(batch, logits));
  num_tokens_ += rows;
  return absl::OkStatus();
}

}  // namespace baton::worker
