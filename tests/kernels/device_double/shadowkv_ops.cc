#include "tests/kernels/device_double/shadowkv_ops.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/gathered_op.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/ops/shadowkv_view.h"
#include "kernels/ops/validate.h"
#include "tests/kernels/device_double/deferred_queues.h"
#include "tests/kernels/device_double/end_row.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/kernels/device_double/pointer_checks.h"
#include "tests/kernels/device_double/widened.h"

namespace baton::kernels {
namespace {

using Access = GuardedMemory::Access;

// The context of the host's op, with scratch memory for what has been added.
class HostContext {
 public:
  explicit HostContext(const ExecContext& device) : exec_(device) {}

  void Add(const ShadowKvWorkspaceSizes& sizes) {
    bytes_ = std::max(bytes_, CpuOps().shadowkv_workspace_bytes(exec_.pool->threads(), sizes));
  }
  const ExecContext& get() {
    workspace_ = Buffer(bytes_);
    exec_.workspace = &workspace_;
    return exec_;
  }

 private:
  ExecContext exec_;
  size_t bytes_ = 0;
  Buffer workspace_;
};

HostContext ContextFor(const ExecContext& device,
                       const ShadowKvSequence* sequences,
                       int64_t count,
                       int64_t heads) {
  HostContext context(device);
  for (int64_t i = 0; i < count; ++i) {
    context.Add({.config = sequences[i].layout->config,
                 .heads = heads,
                 .max_tokens = int64_t{sequences[i].position} + 1});
  }
  return context;
}

absl::Status CheckRope(const char* op, const ShadowKvRope& rope) {
  return CheckPointers(op, {{"rope.cosines", rope.cosines}, {"rope.sines", rope.sines}});
}

absl::Status CheckSequences(const char* op, const ShadowKvSequence* sequences, int64_t count) {
  absl::Status status = CheckPointers(op, {{"sequences", sequences}});
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    const ShadowKvSequence& sequence = sequences[i];
    status = CheckPointers(op,
                           {{"sequence.layout", sequence.layout},
                            {"sequence.prompt", sequence.prompt},
                            {"sequence.tail", sequence.tail},
                            {"sequence.cache", sequence.cache, /*optional=*/true},
                            {"sequence.joint_prompt", sequence.joint_prompt, /*optional=*/true},
                            {"sequence.joint_tail", sequence.joint_tail, /*optional=*/true},
                            {"sequence.counters", sequence.counters, /*optional=*/true}});
  }
  return status;
}

absl::Status CheckBound(const char* op, const char* name, int64_t bound, int64_t value) {
  return value <= bound ? absl::OkStatus()
                        : absl::InternalError(absl::StrCat(
                              "device double: ", op, ": ", name, " is ", bound, " but ", value));
}

absl::Status CheckShape(const char* op,
                        const ShadowKvBounds& bounds,
                        const ShadowKvConfig& config) {
  return bounds.dtype == config.dtype && bounds.kv_heads == config.kv_heads &&
                 bounds.head_dim == config.head_dim
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("device double: ", op, ": bounds of other heads"));
}

absl::Status CheckSelectBounds(const ShadowKvSelectParams& params) {
  constexpr char kOp[] = "shadowkv_select";
  absl::Status status;
  for (int64_t i = 0; status.ok() && i < params.num_sequences; ++i) {
    const ShadowKvSequenceView view(params.sequences[i]);
    status = CheckShape(kOp, params.bounds, view.config());
    status.Update(CheckBound(kOp, "bounds.max_chunks", params.bounds.max_chunks, view.chunks()));
  }
  return status;
}

absl::Status CheckAttentionBounds(const ShadowKvAttentionParams& params) {
  constexpr char kOp[] = "shadowkv_attention";
  const ShadowKvBounds& bounds = params.bounds;
  absl::Status status;
  for (int64_t i = 0; status.ok() && i < params.num_sequences; ++i) {
    const ShadowKvSequenceView view(params.sequences[i]);
    const ShadowKvConfig& config = view.config();
    const int64_t exact =
        view.layout().static_chunks * config.chunk_tokens + view.tokens() - view.first_exact();
    status = CheckShape(kOp, bounds, config);
    status.Update(CheckBound(kOp,
                             "bounds.max_budget_tokens",
                             bounds.max_budget_tokens,
                             config.budget_chunks() * config.chunk_tokens));
    status.Update(CheckBound(kOp, "bounds.max_exact_tokens", bounds.max_exact_tokens, exact));
    const bool other_rank =
        bounds.chunk_key_rank != 0 && bounds.chunk_key_rank != ShadowKvChunkKeyRank(config);
    status.Update(CheckBound(kOp, "bounds.chunk_key_rank", 0, other_rank ? 1 : 0));
    const bool keeps = config.values_apart && params.sequences[i].cache != nullptr;
    status.Update(CheckBound(kOp, "bounds.caches_values", bounds.caches_values ? 1 : 0, keeps));
    status.Update(CheckBound(
        kOp, "bounds.cached", bounds.cached ? 0 : 1, params.sequences[i].cache == nullptr ? 1 : 0));
  }
  return status;
}

absl::Status CheckLayer(const char* op, const ShadowKvJointLayer& layer) {
  return CheckPointers(op,
                       {{"layer.page_table", layer.page_table},
                        {"layer.key_bias", layer.key_bias, /*optional=*/true},
                        {"layer.prompt", layer.prompt}});
}

// The host's op writes a section as a whole; a part of it that another op writes is taken from a
// section of its own.
enum class Part { kFactors, kRest };

absl::Status EncodePart(const ExecContext& device, Part part, ShadowKvEncodeParams params) {
  const ShadowKvPromptLayout& layout = params.layout;
  Buffer section(layout.bytes);
  Buffer values(layout.coded.value_bytes);
  std::byte* const target = std::exchange(params.prompt, section.data());
  if (part == Part::kFactors) {
    params.values = values.data();
  }
  HostContext context(device);
  context.Add({.config = layout.config,
               .heads = layout.config.kv_heads,
               .max_tokens = layout.prompt_tokens});
  if (absl::Status status = CpuOps().shadowkv_encode(context.get(), params); !status.ok()) {
    return status;
  }
  const auto take = [&](Part of, size_t begin, size_t end) {
    if (of == part) {
      std::copy_n(section.data() + begin, end - begin, target + begin);
    }
  };
  const size_t coefficients = layout.coded_begin + layout.coded.coefficients;
  const size_t behind = layout.coded_begin + layout.coded.landmarks;
  take(Part::kFactors, 0, layout.cluster_values);
  take(Part::kRest, layout.cluster_values, coefficients);
  take(Part::kFactors, coefficients, behind);
  take(Part::kRest, behind, layout.bytes);
  return absl::OkStatus();
}

// What the double adds up of a layer's keys: their bits, token by token.
uint64_t KeySum(const DensePages& pages,
                const ShadowKvJointLayer& layer,
                int64_t token_begin,
                int64_t token_end) {
  const DensePageLayout& layout = pages.layout;
  const size_t bytes = static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
  uint64_t sum = 0;
  for (int64_t token = token_begin; token < token_end; ++token) {
    const auto page = static_cast<size_t>(layer.page_table[token / layout.page_tokens]);
    const auto slot = static_cast<int32_t>(token % layout.page_tokens);
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
      const std::byte* const key =
          pages.base + page * layout.stride_bytes() + layout.key_offset(head, slot);
      sum +=
          absl::HashOf(token, head, absl::string_view(reinterpret_cast<const char*>(key), bytes));
    }
  }
  return sum;
}

absl::Status AddGrams(const ShadowKvAddGramsParams& params) {
  const Access access;
  constexpr char kOp[] = "shadowkv_add_grams";
  absl::Status status = Validate(params);
  status.Update(CheckPointers(kOp, {{"pages.base", params.pages.base}}));
  status.Update(CheckRope(kOp, params.rope));
  for (int64_t i = 0; status.ok() && i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[static_cast<size_t>(i)];
    status = CheckPointers(kOp,
                           {{"layer.page_table", layer.page_table},
                            {"layer.key_bias", layer.key_bias, /*optional=*/true},
                            {"layer.gram", layer.gram}});
    if (status.ok()) {
      const auto before = params.token_begin > 0 ? std::bit_cast<uint64_t>(*layer.gram) : 0;
      *layer.gram = std::bit_cast<double>(
          before + KeySum(params.pages, layer, params.token_begin, params.token_end));
    }
  }
  return status;
}

absl::Status CheckGram(const ShadowKvFactorLayersParams& params, const ShadowKvJointLayer& layer) {
  if (params.gram_tokens == 0) {
    return absl::OkStatus();
  }
  absl::Status status = CheckPointers("shadowkv_factor_layers", {{"layer.gram", layer.gram}});
  if (status.ok() &&
      std::bit_cast<uint64_t>(*layer.gram) != KeySum(params.pages, layer, 0, params.gram_tokens)) {
    status = absl::InternalError("device double: shadowkv_factor_layers: sums of other keys");
  }
  return status;
}

absl::Status FactorLayers(const ExecContext& device, const ShadowKvFactorLayersParams& params) {
  const Access access;
  absl::Status status = Validate(params);
  status.Update(CheckPointers("shadowkv_factor_layers", {{"pages.base", params.pages.base}}));
  status.Update(CheckRope("shadowkv_factor_layers", params.rope));
  for (int64_t i = 0; status.ok() && i < params.num_layers; ++i) {
    const ShadowKvJointLayer& layer = params.layers[static_cast<size_t>(i)];
    status = CheckLayer("shadowkv_factor_layers", layer);
    status.Update(status.ok() ? CheckGram(params, layer) : status);
    if (status.ok()) {
      status = EncodePart(device,
                          Part::kFactors,
                          {.layout = params.layout,
                           .pages = params.pages,
                           .page_table = layer.page_table,
                           .rope = params.rope,
                           .key_bias = layer.key_bias,
                           .prompt = layer.prompt});
    }
  }
  return status;
}

absl::Status EncodePrompt(const ExecContext& device, const ShadowKvEncodeParams& params) {
  const Access access;
  absl::Status status = CheckPointers("shadowkv_encode",
                                      {{"pages.base", params.pages.base},
                                       {"page_table", params.page_table},
                                       {"key_bias", params.key_bias, /*optional=*/true},
                                       {"prompt", params.prompt}});
  status.Update(CheckRope("shadowkv_encode", params.rope));
  if (status.ok() && params.factored) {
    return EncodePart(device, Part::kRest, params);
  }
  HostContext context(device);
  context.Add({.config = params.layout.config,
               .heads = params.layout.config.kv_heads,
               .max_tokens = params.layout.prompt_tokens});
  return status.ok() ? CpuOps().shadowkv_encode(context.get(), params) : status;
}

absl::Status EncodeJoint(const ExecContext& device, const ShadowKvEncodeJointParams& params) {
  const Access access;
  absl::Status status = CheckPointers("shadowkv_encode_joint",
                                      {{"pages.base", params.pages.base},
                                       {"layers", params.layers},
                                       {"coefficients", params.coefficients}});
  status.Update(CheckRope("shadowkv_encode_joint", params.rope));
  for (int64_t i = 0; status.ok() && i < params.num_layers; ++i) {
    status = CheckLayer("shadowkv_encode_joint", params.layers[i]);
  }
  HostContext context(device);
  context.Add({.config = params.layout.config,
               .heads = params.layout.config.kv_heads,
               .max_tokens = params.layout.prompt_tokens,
               .layers = params.num_layers});
  return status.ok() ? CpuOps().shadowkv_encode_joint(context.get(), params) : status;
}

template <DType kDType>
absl::Status Append(const ExecContext& device, const ShadowKvAppendParams& params) {
  const Access access;
  absl::Status status = CheckPointers(
      "shadowkv_append",
      {{"k", params.k}, {"v", params.v}, {"key_bias", params.key_bias, /*optional=*/true}});
  status.Update(CheckRope("shadowkv_append", params.rope));
  status.Update(CheckSequences("shadowkv_append", params.sequences, params.num_sequences));
  if (!status.ok()) {
    return status;
  }
  const int64_t width = params.sequences[0].layout->config.width();
  const int64_t rows = EndRow(params.sequences, params.num_sequences);
  Widened<kDType> k(params.k, rows, width, params.k_stride);
  Widened<kDType> v(params.v, rows, width, params.v_stride);
  ShadowKvAppendParams host = params;
  host.k = k.data();
  host.v = v.data();
  host.k_stride = host.v_stride = width;
  HostContext context = ContextFor(device, params.sequences, params.num_sequences, 1);
  return CpuOps().shadowkv_append(context.get(), host);
}

absl::Status AppendJoint(const ExecContext& device, const ShadowKvAppendJointParams& params) {
  const Access access;
  constexpr char kOp[] = "shadowkv_append_joint";
  absl::Status status = CheckPointers(
      kOp, {{"key_bias", static_cast<const void*>(params.key_bias), /*optional=*/true}});
  status.Update(CheckRope(kOp, params.rope));
  status.Update(CheckSequences(kOp, params.layers, params.num_layers));
  HostContext context(device);
  for (int64_t i = 0; status.ok() && i < params.num_layers; ++i) {
    const float* const bias = params.key_bias == nullptr ? nullptr : params.key_bias[i];
    status = CheckPointers(kOp, {{"key_bias of a layer", bias, /*optional=*/true}});
    context.Add({.config = params.layers[i].layout->config,
                 .heads = 1,
                 .max_tokens = int64_t{params.layers[i].position} + 1,
                 .layers = params.num_layers});
  }
  return status.ok() ? CpuOps().shadowkv_append_joint(context.get(), params) : status;
}

template <DType kDType>
absl::Status Select(const ExecContext& device, const ShadowKvSelectParams& params) {
  const Access access;
  absl::Status status = CheckPointers("shadowkv_select",
                                      {{"q", params.q},
                                       {"chunk_ids", params.chunk_ids},
                                       {"cluster_logits", params.cluster_logits, true}});
  status.Update(CheckSequences("shadowkv_select", params.sequences, params.num_sequences));
  status.Update(status.ok() ? CheckSelectBounds(params) : status);
  if (!status.ok()) {
    return status;
  }
  const int64_t width = params.heads * params.bounds.head_dim;
  const int64_t rows = EndRow(params.sequences, params.num_sequences);
  Widened<kDType> q(params.q, rows, width, params.q_stride);
  ShadowKvSelectParams host = params;
  host.q = q.data();
  host.q_stride = width;
  HostContext context = ContextFor(device, params.sequences, params.num_sequences, params.heads);
  return CpuOps().shadowkv_select(context.get(), host);
}

template <DType kDType>
absl::Status Attention(const ExecContext& device, const ShadowKvAttentionParams& params) {
  const Access access;
  absl::Status status = CheckPointers("shadowkv_attention",
                                      {{"q", params.q},
                                       {"chunk_ids", params.chunk_ids},
                                       {"cluster_logits", params.cluster_logits, true},
                                       {"key_bias", params.key_bias, /*optional=*/true},
                                       {"out", params.out},
                                       {"lse", params.lse, /*optional=*/true}});
  status.Update(CheckRope("shadowkv_attention", params.rope));
  status.Update(CheckSequences("shadowkv_attention", params.sequences, params.num_sequences));
  status.Update(status.ok() ? CheckAttentionBounds(params) : status);
  if (!status.ok()) {
    return status;
  }
  const int64_t width = params.heads * params.bounds.head_dim;
  const int64_t rows = EndRow(params.sequences, params.num_sequences);
  Widened<kDType> q(params.q, rows, width, params.q_stride);
  Widened<kDType> out(params.out, rows, width, params.out_stride);
  ShadowKvAttentionParams host = params;
  host.q = q.data();
  host.out = out.data();
  host.q_stride = host.out_stride = width;
  HostContext context = ContextFor(device, params.sequences, params.num_sequences, params.heads);
  status = CpuOps().shadowkv_attention(context.get(), host);
  for (int64_t i = 0; status.ok() && i < params.num_sequences; ++i) {
    const int64_t row = params.sequences[i].row;
    out.Store(params.out, row, row + 1);
  }
  return status;
}

}  // namespace

template <DType kDType>
void SetShadowKvOps(OpTable& table) {
  table.shadowkv_encode = [](const ExecContext& context, const ShadowKvEncodeParams& params) {
    return DeferredQueues::Do(context, [=] { return EncodePrompt(context, params); });
  };
  table.shadowkv_factor_layers = [](const ExecContext& context,
                                    const ShadowKvFactorLayersParams& params) {
    return DeferredQueues::Do(context, [=] { return FactorLayers(context, params); });
  };
  // Of fewer columns than a device needs, so that small models take part.
  table.shadowkv_factored_rank = [](int64_t columns) { return columns / 2; };
  table.shadowkv_add_grams = [](const ExecContext& context, const ShadowKvAddGramsParams& params) {
    return DeferredQueues::Do(context, [=] { return AddGrams(params); });
  };
  table.shadowkv_gram_numbers = [](int64_t /*columns*/) -> int64_t { return 1; };
  table.shadowkv_encode_joint = [](const ExecContext& context,
                                   const ShadowKvEncodeJointParams& params) {
    return DeferredQueues::Do(context, [=] { return EncodeJoint(context, params); });
  };
  table.shadowkv_append = GatheredOp<Append<kDType>>;
  table.shadowkv_append_joint = GatheredOp<AppendJoint>;
  table.shadowkv_select = GatheredOp<Select<kDType>>;
  table.shadowkv_attention = GatheredOp<Attention<kDType>>;
}

template void SetShadowKvOps<DType::kF32>(OpTable& table);
template void SetShadowKvOps<DType::kBF16>(OpTable& table);

}  // namespace baton::kernels
