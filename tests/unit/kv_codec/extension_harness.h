// Extensions of encoded sequences without a model: random keys, values and queries, as
// codec_harness.h makes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/core/step_arrays.h"
#include "kernels/ops/params.h"
#include "tests/unit/kv_codec/codec_harness.h"

namespace baton::kv {

// How a model reads the cache.
struct TestReaders {
  int32_t count = 1;  // model layers that share a stored layer
  int32_t sliding_window = 0;
};

// The queries of reader `reader` at `position`.
inline std::vector<float> ReaderQuery(int32_t reader,
                                      uint32_t salt,
                                      int32_t layer,
                                      int64_t position) {
  return TestFloats(kTestQueryWidth, 3 + 10 * static_cast<uint32_t>(reader), salt, layer, position);
}

// The tokens [begin, end) of a prompt whose earlier ones are held. In the working pages, slots of
// other tokens hold NaN and the ids of pages before `begin` lead nowhere.
class TestExtension {
 public:
  TestExtension(const CodecWorker& worker, int64_t begin, int64_t end, uint32_t salt)
      : begin_(static_cast<int32_t>(begin)), end_(static_cast<int32_t>(end)), salt_(salt) {
    pages_.layout = {.page_tokens = 16, .kv_heads = kTestKvHeads, .head_dim = kTestHeadDim};
    stride_ = pages_.layout.pages_for(end_);
    const int32_t first_page = begin_ / pages_.layout.page_tokens;
    const int32_t used = stride_ - first_page;
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      for (int32_t page = 0; page < stride_; ++page) {
        constexpr int32_t kNowhere = 1 << 28;
        table_.push_back(page < first_page ? kNowhere : layer * used + (stride_ - 1 - page));
      }
    }
    memory_ =
        kernels::Buffer(static_cast<size_t>(kTestLayers * used) * pages_.layout.stride_bytes());
    std::memset(memory_.data(), 0xff, memory_.size());
    pages_.base = memory_.data();
    for (int32_t layer = 0; layer < kTestLayers; ++layer) {
      WriteTestTokens(worker, pages_, table_.data() + layer * stride_, layer, begin_, end_, salt_);
    }
  }

  int32_t begin() const { return begin_; }
  int32_t end() const { return end_; }
  uint32_t salt() const { return salt_; }
  WorkingKv working() const {
    const DenseTable table = {.data = table_.data(), .stride = stride_, .layers = kTestLayers};
    return {.pages = pages_, .table = table, .host_table = table};
  }

  // Computes all rows in steps of `piece` and lets `kv` take the tokens in. Outputs
  // [layers][readers][rows][heads x head_dim].
  absl::StatusOr<std::vector<float>> Run(EncodedKv& kv,
                                         int32_t piece,
                                         const TestReaders& readers = {}) const {
    std::vector<float> all(static_cast<size_t>(kTestLayers * readers.count * (end_ - begin_)) *
                           kTestQueryWidth);
    for (int32_t first = begin_; first < end_; first += piece) {
      const int32_t rows = std::min(piece, end_ - first);
      for (int32_t layer = 0; layer < kTestLayers; ++layer) {
        for (int32_t reader = 0; reader < readers.count; ++reader) {
          BATON_RETURN_IF_ERROR(Attend(kv, layer, reader, first, rows, readers, all));
        }
        if (first + rows == end_) {
          BATON_RETURN_IF_ERROR(kv.EncodeLayer(working(), layer));
        }
      }
    }
    return all;
  }
  // Where Run's outputs of a row are.
  const float* Row(const std::vector<float>& all,
                   int32_t layer,
                   int32_t reader,
                   int32_t position,
                   const TestReaders& readers) const {
    const int32_t row = (layer * readers.count + reader) * (end_ - begin_) + position - begin_;
    return all.data() + static_cast<size_t>(row) * kTestQueryWidth;
  }

 private:
  // Rows [first, first + rows), behind two rows of a tile that belong to somebody else.
  absl::Status Attend(EncodedKv& kv,
                      int32_t layer,
                      int32_t reader,
                      int32_t first,
                      int32_t rows,
                      const TestReaders& readers,
                      std::vector<float>& all) const {
    constexpr size_t kStride = kTestQueryWidth + 5;
    constexpr int32_t kOthers = 2;
    std::vector<float> q(static_cast<size_t>(kOthers + rows) * kStride, 7.0f);
    std::vector<float> out(q.size(), -3.0f);
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), first);
    for (int32_t row = 0; row < rows; ++row) {
      const auto query = ReaderQuery(reader, salt_, layer, first + row);
      std::copy(query.begin(),
                query.end(),
                q.begin() + (kOthers + row) * static_cast<ptrdiff_t>(kStride));
    }
    std::vector<float> lse(static_cast<size_t>(kOthers + rows) * kTestHeads);
    const PromptRows prompt_rows = {.row_begin = kOthers,
                                    .row_count = rows,
                                    .positions = positions.data(),
                                    .op_positions = positions.data()};
    kernels::StepArrays arrays(kernels::HostMemory());
    BATON_RETURN_IF_ERROR(kv.PrepareStep());
    BATON_RETURN_IF_ERROR(kv.PrepareExtension(working(), prompt_rows, arrays));
    BATON_RETURN_IF_ERROR(kv.AttendExtension(working(),
                                             prompt_rows,
                                             {.kv_layer = layer,
                                              .first_reader = reader == 0,
                                              .last_reader = reader == readers.count - 1,
                                              .q = q.data(),
                                              .q_stride = kStride,
                                              .heads = kTestHeads,
                                              .scale = kTestScale,
                                              .sliding_window = readers.sliding_window,
                                              .out = out.data(),
                                              .out_stride = kStride,
                                              .lse = lse.data()}));
    for (size_t i = 0; i < out.size(); ++i) {
      const bool own = i >= kOthers * kStride && i % kStride < kTestQueryWidth;
      if (!own && out[i] != -3.0f) {
        return absl::InternalError("attention wrote rows that are not its own");
      }
    }
    for (int32_t row = 0; row < rows; ++row) {
      std::copy_n(out.begin() + (kOthers + row) * static_cast<ptrdiff_t>(kStride),
                  kTestQueryWidth,
                  const_cast<float*>(Row(all, layer, reader, first + row, readers)));
    }
    return absl::OkStatus();
  }

  int32_t begin_;
  int32_t end_;
  uint32_t salt_;
  int32_t stride_ = 0;
  kernels::Buffer memory_;
  kernels::DensePages pages_;
  std::vector<int32_t> table_;
};

// A sequence that holds a prompt and some generated tokens, and has room for nothing more.
inline std::unique_ptr<EncodedKv> KeptSequence(const CodecWorker& worker,
                                               std::string_view policy,
                                               int32_t prompt_tokens,
                                               int32_t generated,
                                               uint32_t salt) {
  auto kv = worker.Allocate(policy, prompt_tokens, generated);
  const TestPrompt prompt(worker, prompt_tokens, salt);
  prompt.Encode(*kv).IgnoreError();
  kv->Trim();
  Decode(*kv, prompt_tokens, generated, salt).status().IgnoreError();
  kv->Shrink();
  return kv;
}

}  // namespace baton::kv
