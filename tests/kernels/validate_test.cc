#include "kernels/ops/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/diffkv.h"
#include "kernels/ops/diffkv_params.h"
#include "kernels/ops/fp8_params.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"

namespace baton::kernels {
namespace {

using testing::HasSubstr;

template <typename Params>
void ExpectRefused(const Params& params, const std::string& text) {
  const absl::Status status = Validate(params);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

// Memory that a check may point at; checks read only ids and positions.
struct Memory {
  float floats[64] = {};
  std::byte bytes[256] = {};
  int32_t ids[4] = {0, 1, 2, 3};
  SequenceRows sequence = {.row_begin = 0, .row_count = 2, .page_table = ids};
};

MatmulParams GoodMatmul(Memory& memory) {
  return {.x = memory.floats,
          .x_stride = 4,
          .weight = {.data = memory.bytes, .out_features = 3, .in_features = 4},
          .rows = 2,
          .out = memory.floats,
          .out_stride = 3};
}

PagedAttentionParams GoodAttention(Memory& memory) {
  return {
      .q = memory.floats,
      .q_stride = 16,
      .positions = memory.ids,
      .sequences = &memory.sequence,
      .num_sequences = 1,
      .pages = {.base = memory.bytes, .layout = {.page_tokens = 2, .kv_heads = 2, .head_dim = 4}},
      .heads = 4,
      .scale = 1.0f,
      .out = memory.floats,
      .out_stride = 16};
}

TEST(ValidateTest, MatmulNamesTheBrokenField) {
  Memory memory;
  MatmulParams params = GoodMatmul(memory);
  EXPECT_TRUE(Validate(params).ok());
  params.rows = -1;
  ExpectRefused(params, "rows is -1");
  params = GoodMatmul(memory);
  params.x = nullptr;
  ExpectRefused(params, "x is null");
  params = GoodMatmul(memory);
  params.out_stride = 2;
  ExpectRefused(params, "out_stride is 2 but must be at least 3");
  params = GoodMatmul(memory);
  params.weight.dtype = DType::kI32;
  ExpectRefused(params, "weight.dtype is i32");
}

TEST(ValidateTest, Fp8EncodeNamesTheBrokenField) {
  Memory memory;
  const DensePageLayout layout = {.page_tokens = 2, .kv_heads = 2, .head_dim = 4};
  Fp8EncodeParams good = {.source = {memory.bytes, layout},
                          .source_table = memory.ids,
                          .tokens = 3,
                          .page_table = memory.ids,
                          .pages = {memory.bytes, layout}};
  good.pages.layout.dtype = DType::kF8E4M3;
  EXPECT_TRUE(Validate(good).ok());
  Fp8EncodeParams params = good;
  params.first_token = -1;
  ExpectRefused(params, "first_token is -1");
  params = good;
  params.first_token = 4;
  ExpectRefused(params, "tokens is 3 but must be at least 4");
  params = good;
  params.source.layout.dtype = DType::kF8E4M3;
  ExpectRefused(params, "source.layout.dtype is f8e4m3");
  params = good;
  params.pages.layout.dtype = DType::kBF16;
  ExpectRefused(params, "must be f8e4m3");
  params = good;
  params.source.layout.head_dim = 8;
  ExpectRefused(params, "source.layout.head_dim is 8 but must be pages.layout.head_dim");
  params = good;
  params.page_table = nullptr;
  ExpectRefused(params, "page_table is null");
}

TEST(ValidateTest, ShadowKvAddGramsNamesTheBrokenField) {
  Memory memory;
  double sums[4] = {};
  ShadowKvAddGramsParams good;
  good.config.kv_heads = 2;
  good.config.head_dim = 8;
  good.config.rank = 4;
  good.pages = {
      .base = memory.bytes,
      .layout = {.page_tokens = 2, .kv_heads = 2, .head_dim = 8, .dtype = good.config.dtype}};
  good.layers[0] = {.page_table = memory.ids, .gram = sums};
  good.num_layers = 1;
  good.token_begin = 2;
  good.token_end = 3;
  good.rope = {.cosines = memory.floats, .sines = memory.floats, .positions = 3};
  EXPECT_TRUE(Validate(good).ok()) << Validate(good);
  ShadowKvAddGramsParams params = good;
  params.token_begin = 3;
  ExpectRefused(params, "token_end is 3 but must be at least 4");
  params = good;
  params.token_begin = -1;
  ExpectRefused(params, "token_begin is -1");
  params = good;
  params.num_layers = 9;
  ExpectRefused(params, "num_layers is 9");
  params = good;
  params.num_layers = 2;
  ExpectRefused(params, "layer page_table is null");
  params = good;
  params.layers[0].gram = nullptr;
  ExpectRefused(params, "layer gram is null");
  params = good;
  params.config.joint = true;
  ExpectRefused(params, "config.joint");
  params = good;
  params.rope.positions = 2;
  ExpectRefused(params, "rope.positions is 2 but must be at least 3");
}

TEST(ValidateTest, WhatGoesWithAProductMustFitIt) {
  Memory memory;
  MatmulParams params = GoodMatmul(memory);
  params.norm.weight = memory.floats;
  ExpectRefused(params, "norm.normed is null");
  params = GoodMatmul(memory);
  params.gate_up = memory.floats;
  ExpectRefused(params, "weight.out_features is 3 but must be even");
  params.weight.out_features = 4;
  params.out_stride = 2;
  EXPECT_TRUE(Validate(params).ok());
  params.accumulate = true;
  ExpectRefused(params, "not for each other");
  params = GoodMatmul(memory);
  params.rope = {.cosines = memory.floats, .heads = 1, .half_dim = 1};
  ExpectRefused(params, "rope.sines is null");
  params.rope.sines = memory.floats;
  EXPECT_TRUE(Validate(params).ok());
  params.rope.heads = 2;
  ExpectRefused(params, "weight.out_features is 3 but must be at least 4");
  params.rope.heads = 1;
  params.wide = true;
  ExpectRefused(params, "not for each other");
}

TEST(ValidateTest, AttentionHeadsMustShareKvHeadsEvenly) {
  Memory memory;
  PagedAttentionParams params = GoodAttention(memory);
  EXPECT_TRUE(Validate(params).ok());
  params.heads = 3;
  ExpectRefused(params, "heads is 3 but must be a multiple");
  params = GoodAttention(memory);
  params.sliding_window = -1;
  ExpectRefused(params, "sliding_window is -1");
  params = GoodAttention(memory);
  params.pages.layout.page_tokens = 0;
  ExpectRefused(params, "page_tokens is 0");
  params = GoodAttention(memory);
  memory.ids[1] = -5;
  ExpectRefused(params, "position is -5");
  memory.ids[1] = 1;
  memory.sequence.page_table = nullptr;
  ExpectRefused(params, "page_table is null");
}

TEST(ValidateTest, KvWriteAndCopyPages) {
  Memory memory;
  KvWriteParams write = {.k = memory.floats,
                         .k_stride = 8,
                         .v = memory.floats,
                         .v_stride = 8,
                         .positions = memory.ids,
                         .sequences = &memory.sequence,
                         .num_sequences = 1,
                         .pages = GoodAttention(memory).pages};
  EXPECT_TRUE(Validate(write).ok());
  write.v_stride = 7;
  ExpectRefused(write, "v_stride is 7 but must be at least 8");
  CopyPagesParams copy = {.source = memory.ids,
                          .target = memory.ids,
                          .count = 4,
                          .base = write.pages.base,
                          .stride_bytes = 64};
  EXPECT_TRUE(Validate(copy).ok());
  copy.stride_bytes = 96;
  ExpectRefused(copy, "stride_bytes is 96 but must be a multiple of 64");
  copy.stride_bytes = 64;
  memory.ids[3] = -1;
  ExpectRefused(copy, "source element is -1");
}

TEST(ValidateTest, EmbedRefusesIdsOutsideTheVocabulary) {
  Memory memory;
  const EmbedParams params = {.table = memory.bytes,
                              .dtype = DType::kBF16,
                              .vocab = 3,
                              .dim = 4,
                              .token_ids = memory.ids,
                              .rows = 4,
                              .out = memory.floats};
  ExpectRefused(params, "token_ids[3] is 3 but must be in [0, 3)");
}

TEST(ValidateTest, RowWiseOps) {
  Memory memory;
  ExpectRefused(RmsNormParams{.x = memory.floats, .rows = 1, .dim = 0}, "dim is 0");
  ExpectRefused(SiluMulParams{.gate_up = memory.floats,
                              .gate_up_stride = 5,
                              .rows = 1,
                              .dim = 3,
                              .out = memory.floats,
                              .out_stride = 3},
                "gate_up_stride is 5");
  ExpectRefused(RopeParams{.x = memory.floats, .x_stride = 8, .rows = 1, .heads = 1, .half_dim = 4},
                "cosines is null");
  ExpectRefused(RopeAnglesParams{.rows = 1, .half_dim = 4}, "positions is null");
  ExpectRefused(GatherRowsParams{.rows = 1, .dim = 4}, "x is null");
  ExpectRefused(PackMatrixParams{.out_features = 1, .in_features = 1}, "source is null");
}

TEST(ValidateTest, ZeroRowsNeedNoPointers) {
  EXPECT_TRUE(Validate(EmbedParams{}).ok());
  EXPECT_TRUE(Validate(MatmulParams{}).ok());
  EXPECT_TRUE(Validate(RopeAnglesParams{}).ok());
  EXPECT_TRUE(Validate(RopeParams{}).ok());
  EXPECT_TRUE(Validate(SiluMulParams{}).ok());
  EXPECT_TRUE(Validate(GatherRowsParams{}).ok());
  EXPECT_TRUE(Validate(CopyPagesParams{}).ok());
  EXPECT_TRUE(Validate(KvWriteParams{}).ok());
  EXPECT_TRUE(Validate(PagedAttentionParams{}).ok());
  EXPECT_TRUE(Validate(AttentionProbabilitiesParams{}).ok());
  EXPECT_TRUE(Validate(AccumulateScoresParams{}).ok());
  EXPECT_TRUE(Validate(DiffKvEncodeParams{}).ok());
  EXPECT_TRUE(Validate(DiffKvSweepParams{}).ok());
  EXPECT_TRUE(Validate(DiffKvAppendParams{}).ok());
  EXPECT_TRUE(Validate(DiffKvAttentionParams{}).ok());
}

TEST(ValidateTest, DiffKvGeometryNeedsAPageLayout) {
  Memory memory;
  DiffKvLease lease = {.ids = memory.ids, .count = 4};
  DiffKvAssignPagesParams params = {
      .geometry = {.kv_heads = 2, .head_dim = 64},
      .layer = {.page_table = memory.ids, .token_counts = memory.ids, .columns = 1},
      .lease = &lease};
  EXPECT_TRUE(Validate(params).ok());
  params.geometry.head_dim = 96;
  ExpectRefused(params, "geometry.head_dim is 96 but must be 64 or 128");
  params.geometry = {.kv_heads = 2, .head_dim = 64, .tiers = {{8, 2}, {4, 2}}};
  ExpectRefused(params, "a tier must be K8V8, K8V4, K4V4 or K4V2");
  params.geometry.tiers[kDiffKvHigh] = {4, 2};
  params.geometry.tiers[kDiffKvLow] = {8, 4};
  ExpectRefused(params, "low key_bits is 8 but must not be above the high tier's");
  params.geometry = {.kv_heads = 2, .head_dim = 64};
  lease.used = 5;
  ExpectRefused(params, "lease.count is 4 but must be at least 5");
}

TEST(ValidateTest, DiffKvPolicyAndCounts) {
  Memory memory;
  DiffKvClass classes[64] = {};
  int32_t counts[2] = {};
  DiffKvClassifyParams classify = {.scores = memory.floats,
                                   .score_stride = 64,
                                   .tokens = 64,
                                   .kv_heads = 1,
                                   .policy = {},
                                   .classes = classes,
                                   .token_counts = counts};
  EXPECT_TRUE(Validate(classify).ok());
  classify.policy.window = 65;
  ExpectRefused(classify, "policy.window is 65 but must be at most 64");
  classify.policy = {.alpha_high = 1.0f, .alpha_low = 2.0f};
  ExpectRefused(classify, "must be in [0, alpha_high]");
  classify.policy = {};
  classify.score_stride = 63;
  ExpectRefused(classify, "score_stride is 63");
  counts[0] = 33;  // two pages of 32
  int32_t count = 0;
  const DiffKvReleasePagesParams release = {
      .geometry = {.kv_heads = 1, .head_dim = 64},
      .layer = {.page_table = memory.ids, .token_counts = counts, .columns = 1},
      .ids = memory.ids,
      .count = &count};
  ExpectRefused(release, "layer.columns is 1 but must be at least 2");
}

TEST(ValidateTest, DiffKvActionsAreOfTheTokensStored) {
  Memory memory;
  int32_t counts[2] = {5, 4};
  DiffKvLease lease = {.ids = memory.ids, .count = 4};
  DiffKvAction action = {.high_slot = 5, .appended = true};
  DiffKvAppendRow row = {.layer = {.page_table = memory.ids, .token_counts = counts, .columns = 2},
                         .position = 8,
                         .lease = &lease,
                         .actions = &action};
  const DiffKvTakePagesParams params = {
      .rows = &row,
      .layers = 1,
      .sequences = 1,
      .pages = {.base = memory.bytes, .geometry = {.kv_heads = 1, .head_dim = 64}}};
  EXPECT_TRUE(Validate(params).ok());
  action = {.high_slot = 4, .demoted_to = 4, .low_appended = true};
  EXPECT_TRUE(Validate(params).ok());
  for (const DiffKvAction& wrong : {DiffKvAction{},
                                    DiffKvAction{.high_slot = 5},
                                    DiffKvAction{.high_slot = 4, .appended = true},
                                    DiffKvAction{.high_slot = 4, .demoted_to = 4},
                                    DiffKvAction{.high_slot = 4, .demoted_to = -2},
                                    DiffKvAction{.high_slot = 4, .low_appended = true}}) {
    action = wrong;
    ExpectRefused(params, "must be what diffkv_sweep decided for the tokens stored");
  }
  row.sweep = false;
  EXPECT_TRUE(Validate(params).ok());
}

TEST(ValidateTest, DiffKvRowsOfASequenceHaveOneLease) {
  Memory memory;
  int32_t counts[2] = {5, 4};
  DiffKvLease leases[2] = {{.ids = memory.ids, .count = 4}, {.ids = memory.ids, .count = 4}};
  DiffKvAction action;
  DiffKvAppendRow rows[4];
  for (size_t i = 0; i < 4; ++i) {
    rows[i] = {.layer = {.page_table = memory.ids, .token_counts = counts, .columns = 2},
               .sweep = false,
               .lease = &leases[i % 2],
               .actions = &action};
  }
  DiffKvTakePagesParams params = {
      .rows = rows,
      .layers = 2,
      .sequences = 2,
      .pages = {.base = memory.bytes, .geometry = {.kv_heads = 1, .head_dim = 64}}};
  EXPECT_TRUE(Validate(params).ok());
  rows[2].lease = &leases[1];
  ExpectRefused(params, "rows element is 2 but must have its sequence's lease");
  params.layers = -1;
  ExpectRefused(params, "layers is -1");
}

TEST(ValidateTest, DiffKvTokensAreWrittenToPagesThatWereTaken) {
  Memory memory;
  int32_t counts[2] = {5, 4};
  DiffKvAction action = {.high_slot = 4, .pages = {0, -1}};
  DiffKvAppendRow row = {.layer = {.page_table = memory.ids, .token_counts = counts, .columns = 2},
                         .position = 8,
                         .actions = &action};
  const DiffKvAppendParams params = {
      .k = memory.floats,
      .v = memory.floats,
      .stride = 64,
      .rows = &row,
      .num_rows = 1,
      .pages = {.base = memory.bytes, .geometry = {.kv_heads = 1, .head_dim = 64}}};
  EXPECT_TRUE(Validate(params).ok());
  action = {.high_slot = 4, .demoted_to = 3, .pages = {0, 1}};
  EXPECT_TRUE(Validate(params).ok());
  for (const DiffKvAction& wrong :
       {DiffKvAction{},
        DiffKvAction{.high_slot = 4},
        DiffKvAction{.high_slot = 5, .pages = {0, -1}},
        DiffKvAction{.high_slot = 4, .demoted_to = 3, .pages = {0, -1}},
        DiffKvAction{.high_slot = 4, .demoted_to = 4, .pages = {0, 1}},
        DiffKvAction{.high_slot = 4, .demoted_to = -2, .pages = {0, 1}}}) {
    action = wrong;
    ExpectRefused(params, "must have a page by diffkv_take_pages");
  }
}

TEST(ValidateTest, DiffKvAttentionRows) {
  Memory memory;
  int32_t counts[2] = {5, 4};
  DiffKvAttentionRow row = {
      .layer = {.page_table = memory.ids, .token_counts = counts, .columns = 2},
      .position = 8,
      .probabilities = memory.floats,
      .probability_stride = 9};
  DiffKvAttentionParams params = {
      .q = memory.floats,
      .q_stride = 128,
      .out = memory.floats,
      .out_stride = 128,
      .scratch = memory.floats,
      .rows = &row,
      .num_rows = 1,
      .pages = {.base = memory.bytes, .geometry = {.kv_heads = 1, .head_dim = 64}},
      .heads = 2,
      .scale = 1.0f};
  EXPECT_TRUE(Validate(params).ok());
  row.probability_stride = 8;
  ExpectRefused(params, "row probability_stride is 8 but must be at least 9");
  row.probability_stride = 9;
  row.row = -1;
  ExpectRefused(params, "row row is -1 but must not be negative");
  row.row = 0;
  row.scratch_begin = 2;
  ExpectRefused(params, "row scratch_begin is 2 but must be a multiple of 4");
  row.scratch_begin = 0;
  params.q_stride = 127;
  ExpectRefused(params, "q_stride is 127 but must be at least 128");
  params.q_stride = 128;
  params.scratch = nullptr;
  ExpectRefused(params, "scratch is null");
}

TEST(WorkspaceTest, TooSmallAWorkspaceIsRefusedWithTheSizeNeeded) {
  Memory memory;
  ThreadPool pool(1);
  Buffer workspace(64);
  const ExecContext context = {.pool = &pool, .workspace = &workspace};
  const absl::Status status = CpuOps().paged_attention(context, GoodAttention(memory));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("workspace_bytes"));
}

}  // namespace
}  // namespace baton::kernels
