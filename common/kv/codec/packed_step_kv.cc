#include "common/kv/codec/packed_step_kv.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/step_kv.h"
#include "kernels/core/exec_context.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"

namespace baton::kv {
namespace {

std::vector<DenseTable> Tables(const std::vector<StepSequenceKv>& sequences) {
  std::vector<DenseTable> tables;
  tables.reserve(sequences.size());
  for (const StepSequenceKv& sequence : sequences) {
    tables.push_back(sequence.dense);
  }
  return tables;
}

bool Extends(const StepSequenceKv& sequence) {
  return sequence.prefill && sequence.encoded != nullptr && sequence.extension_begin > 0;
}

}  // namespace

PackedStepKv::PackedStepKv(const kernels::OpTable& ops,
                           const kernels::ExecContext& exec,
                           const kernels::DensePages& pages,
                           std::vector<StepSequenceKv> sequences)
    : sequences_(std::move(sequences)),
      tables_(Tables(sequences_)),
      dense_(ops, exec, pages, tables_) {}

void PackedStepKv::Split(const KvRows& rows) {
  dense_runs_.clear();
  extension_runs_.clear();
  for (Group& group : groups_) {
    group.rows.clear();
  }
  for (const RowRun& run : rows.runs) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    if (Extends(sequence)) {
      extension_runs_.push_back(run);
      continue;
    }
    if (sequence.prefill || sequence.encoded == nullptr) {
      dense_runs_.push_back(run);
      continue;
    }
    KvCodec* codec = &sequence.encoded->codec();
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& candidate) {
      return candidate.codec == codec;
    });
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(), {.codec = codec, .rows = {}});
    }
    group->rows.push_back(
        {.kv = sequence.encoded, .row = run.row_begin, .position = rows.positions[run.row_begin]});
  }
}

absl::Status PackedStepKv::Write(const KvRows& rows, const KvEntries& entries) {
  Split(rows);
  dense_runs_.insert(dense_runs_.end(), extension_runs_.begin(), extension_runs_.end());
  if (!dense_runs_.empty()) {
    BATON_RETURN_IF_ERROR(dense_.Write(
        {.rows = rows.rows, .runs = dense_runs_, .positions = rows.positions}, entries));
  }
  for (const Group& group : groups_) {
    if (!group.rows.empty()) {
      BATON_RETURN_IF_ERROR(group.codec->Append(group.rows, entries));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::Attend(const KvRows& rows, const KvQueries& queries) {
  Split(rows);
  if (!dense_runs_.empty()) {
    BATON_RETURN_IF_ERROR(dense_.Attend(
        {.rows = rows.rows, .runs = dense_runs_, .positions = rows.positions}, queries));
  }
  for (const Group& group : groups_) {
    if (!group.rows.empty()) {
      BATON_RETURN_IF_ERROR(group.codec->Attend(group.rows, queries));
    }
  }
  BATON_RETURN_IF_ERROR(AttendExtensions(rows, queries));
  return Observe(rows, queries);
}

absl::Status PackedStepKv::AttendExtensions(const KvRows& rows, const KvQueries& queries) {
  for (const RowRun& run : extension_runs_) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    BATON_RETURN_IF_ERROR(
        sequence.encoded->AttendExtension({.pages = dense_.pages(), .table = sequence.dense},
                                          {.row_begin = run.row_begin,
                                           .row_count = run.row_count,
                                           .positions = rows.positions + run.row_begin},
                                          queries));
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::Observe(const KvRows& rows, const KvQueries& queries) {
  for (const RowRun& run : rows.runs) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    if (!sequence.prefill || sequence.encoded == nullptr || Extends(sequence)) {
      continue;
    }
    const int32_t* begin = rows.positions + run.row_begin;
    const int32_t* end = begin + run.row_count;
    const int32_t* first = std::lower_bound(begin, end, sequence.encoded->first_observed());
    if (first != end) {
      BATON_RETURN_IF_ERROR(sequence.encoded->Observe(
          {.pages = dense_.pages(), .table = sequence.dense},
          {.row_begin = run.row_begin + static_cast<int32_t>(first - begin),
           .row_count = static_cast<int32_t>(end - first),
           .positions = first},
          queries));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::WriteHidden(const KvRows& rows, const float* x, int64_t stride) {
  for (const RowRun& run : rows.runs) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    if (sequence.prefill && sequence.hidden != nullptr) {
      BATON_RETURN_IF_ERROR(sequence.hidden->Write(
          rows.positions[run.row_begin], run.row_count, x + run.row_begin * stride, stride));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::EncodeLayer(const StepSequenceKv& sequence, int32_t kv_layer) {
  if (sequence.hidden == nullptr || kv_layer < sequence.full_layers) {
    return sequence.encoded->EncodeLayer({.pages = dense_.pages(), .table = sequence.dense},
                                         kv_layer);
  }
  const std::span<const float> scores = sequence.encoded->WindowScores(kv_layer);
  const std::span<float> shipped = sequence.hidden->scores().subspan(
      static_cast<size_t>(kv_layer - sequence.full_layers) * scores.size(), scores.size());
  std::copy(scores.begin(), scores.end(), shipped.begin());
  return absl::OkStatus();
}

absl::Status PackedStepKv::LayerAttended(int32_t kv_layer) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const StepSequenceKv& sequence = sequences_[i];
    if (sequence.completes_prompt && sequence.encoded != nullptr) {
      BATON_RETURN_IF_ERROR(EncodeLayer(sequence, kv_layer));
      OnLayerEncoded(static_cast<int32_t>(i), kv_layer);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kv
