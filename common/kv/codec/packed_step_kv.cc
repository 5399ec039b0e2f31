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
#include "kernels/core/side_queues.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/activations.h"
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

// Whether a prompt is computed that will be encoded.
bool ComputesEncoded(const std::vector<StepSequenceKv>& sequences) {
  return std::ranges::any_of(sequences, [](const StepSequenceKv& sequence) {
    return sequence.prefill && sequence.encoded != nullptr;
  });
}

}  // namespace

PackedStepKv::PackedStepKv(const kernels::OpTable& ops,
                           const kernels::ExecContext& exec,
                           const kernels::DensePages& pages,
                           std::vector<StepSequenceKv> sequences)
    : sequences_(std::move(sequences)),
      tables_(Tables(sequences_)),
      dense_(ops, exec, pages, tables_),
      paced_(ComputesEncoded(sequences_) ? exec.side : nullptr),
      activations_(ops.activations) {}

absl::Status PackedStepKv::Prepare(std::span<const KvRows> tiles, kernels::StepArrays& arrays) {
  dense_.PrepareTables(arrays);
  for (const StepSequenceKv& sequence : sequences_) {
    if (sequence.encoded != nullptr) {
      BATON_RETURN_IF_ERROR(sequence.encoded->PrepareStep());
    }
  }
  tiles_.clear();
  for (const KvRows& rows : tiles) {
    BATON_ASSIGN_OR_RETURN(Tile tile, PrepareTile(rows, arrays));
    tiles_.push_back(std::move(tile));
  }
  return absl::OkStatus();
}

absl::StatusOr<PackedStepKv::Tile> PackedStepKv::PrepareTile(const KvRows& rows,
                                                             kernels::StepArrays& arrays) {
  Tile tile;
  std::vector<RowRun> written;
  std::vector<RowRun> attended;
  for (const RowRun& run : rows.runs) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    if (Extends(sequence)) {
      written.push_back(run);
      tile.extensions.push_back(run);
      BATON_RETURN_IF_ERROR(
          sequence.encoded->PrepareExtension(Working(run.sequence), RowsOf(rows, run), arrays));
    } else if (sequence.prefill || sequence.encoded == nullptr) {
      written.push_back(run);
      attended.push_back(run);
    } else {
      AddToGroup(rows, run, tile.groups);
    }
  }
  tile.written = dense_.PrepareRuns(rows, written, arrays);
  tile.attended =
      tile.extensions.empty() ? tile.written : dense_.PrepareRuns(rows, attended, arrays);
  for (Group& group : tile.groups) {
    BATON_ASSIGN_OR_RETURN(group.prepared, group.codec->Prepare(group.rows, arrays));
  }
  return tile;
}

void PackedStepKv::AddToGroup(const KvRows& rows,
                              const RowRun& run,
                              std::vector<Group>& groups) const {
  EncodedKv* const kv = sequences_[static_cast<size_t>(run.sequence)].encoded;
  KvCodec* codec = &kv->codec();
  auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& candidate) {
    return candidate.codec == codec;
  });
  if (group == groups.end()) {
    group = groups.insert(groups.end(), {.codec = codec, .rows = {}, .prepared = {}});
  }
  group->rows.push_back(
      {.kv = kv, .row = run.row_begin, .position = rows.positions[run.row_begin]});
}

absl::Status PackedStepKv::Write(const KvRows& rows, const KvEntries& entries) {
  const Tile& tile = tiles_[static_cast<size_t>(rows.tile)];
  if (tile.written.count > 0) {
    BATON_RETURN_IF_ERROR(dense_.Write(tile.written, entries));
  }
  for (const Group& group : tile.groups) {
    BATON_RETURN_IF_ERROR(group.prepared->Append(entries));
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::Attend(const KvRows& rows, const KvQueries& queries) {
  const Tile& tile = tiles_[static_cast<size_t>(rows.tile)];
  if (tile.attended.count > 0) {
    BATON_RETURN_IF_ERROR(dense_.Attend(tile.attended, queries));
  }
  for (const Group& group : tile.groups) {
    BATON_RETURN_IF_ERROR(group.prepared->Attend(queries));
  }
  BATON_RETURN_IF_ERROR(AttendExtensions(rows, queries));
  return Observe(rows, queries);
}

absl::Status PackedStepKv::AttendExtensions(const KvRows& rows, const KvQueries& queries) {
  for (const RowRun& run : tiles_[static_cast<size_t>(rows.tile)].extensions) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    BATON_RETURN_IF_ERROR(
        sequence.encoded->AttendExtension(Working(run.sequence), RowsOf(rows, run), queries));
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
      const auto row_begin = static_cast<int32_t>(first - rows.positions);
      BATON_RETURN_IF_ERROR(
          sequence.encoded->Observe(Working(run.sequence),
                                    {.row_begin = row_begin,
                                     .row_count = static_cast<int32_t>(end - first),
                                     .positions = first,
                                     .op_positions = rows.op_positions + row_begin},
                                    queries));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::WriteHidden(const KvRows& rows, const void* x, int64_t stride) {
  for (const RowRun& run : rows.runs) {
    const StepSequenceKv& sequence = sequences_[static_cast<size_t>(run.sequence)];
    if (sequence.prefill && sequence.hidden != nullptr) {
      BATON_RETURN_IF_ERROR(
          sequence.hidden->Write(rows.positions[run.row_begin],
                                 run.row_count,
                                 kernels::Advance(x, run.row_begin * stride, activations_),
                                 stride));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::EncodeLayer(int32_t index, int32_t kv_layer) {
  const StepSequenceKv& sequence = sequences_[static_cast<size_t>(index)];
  if (sequence.hidden == nullptr || kv_layer < sequence.full_layers) {
    return sequence.encoded->EncodeLayer(Working(index), kv_layer);
  }
  return sequence.encoded->LeaveLayer(kv_layer);
}

// Of a prompt whose upper layers leave as hidden states, they are not coded here.
absl::Status PackedStepKv::TellTokensWritten() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const StepSequenceKv& sequence = sequences_[i];
    if (sequence.computed_tokens > 0 && sequence.encoded != nullptr && !Extends(sequence) &&
        sequence.hidden == nullptr) {
      BATON_RETURN_IF_ERROR(sequence.encoded->TokensWritten(Working(static_cast<int32_t>(i)),
                                                            sequence.computed_tokens));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedStepKv::LayerAttended(int32_t kv_layer) {
  if (paced_ != nullptr) {
    BATON_RETURN_IF_ERROR(paced_->Pace());
  }
  if (kv_layer == 0) {
    BATON_RETURN_IF_ERROR(TellTokensWritten());
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const StepSequenceKv& sequence = sequences_[i];
    if (sequence.completes_prompt && sequence.encoded != nullptr) {
      BATON_RETURN_IF_ERROR(EncodeLayer(static_cast<int32_t>(i), kv_layer));
      BATON_RETURN_IF_ERROR(OnLayerEncoded(static_cast<int32_t>(i), kv_layer));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kv
