#include "services/router/validate/prepare_request.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/kv_policy.h"
#include "common/rpc/status_details.h"
#include "services/router/model/sampling_defaults.h"
#include "services/router/model/served_model.h"
#include "services/router/session/request_plan.h"
#include "services/router/validate/check_request.h"
#include "services/router/validate/encode_prompt.h"
#include "services/router/workers/worker_set.h"

namespace baton::router {
namespace {

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Little-endian int32, as workers take a prompt.
std::shared_ptr<const std::string> PackTokenIds(const std::vector<int32_t>& ids) {
  static_assert(std::endian::native == std::endian::little);
  auto bytes = std::make_shared<std::string>(ids.size() * sizeof(int32_t), '\0');
  std::memcpy(bytes->data(), ids.data(), bytes->size());
  return bytes;
}

absl::Status PromptTooLong(std::string_view field, size_t tokens, uint32_t context) {
  return rpc::WithReason(
      rpc::InvalidField(field,
                        absl::StrCat("the prompt has ",
                                     tokens,
                                     " tokens; with at least one token of output the limit "
                                     "is ",
                                     context - 1)),
      rpc::reason::kPromptTooLong,
      {{"prompt_tokens", absl::StrCat(tokens)}, {"limit", absl::StrCat(context - 1)}});
}

const char* PromptField(const inference::v1::GenerateRequest& request) {
  return request.has_text() ? "text" : request.has_chat() ? "chat" : "token_ids.ids";
}

// max_tokens of the request, or the default capped by what the context leaves.
absl::StatusOr<uint32_t> ResolveMaxTokens(const inference::v1::Stopping& stopping,
                                          uint32_t default_max_tokens,
                                          uint32_t prompt_tokens,
                                          uint32_t context) {
  const uint32_t room = context - prompt_tokens;
  if (!stopping.has_max_tokens()) {
    const uint32_t max_tokens = std::min(std::max(default_max_tokens, stopping.min_tokens()), room);
    if (stopping.min_tokens() > max_tokens) {
      return rpc::InvalidField(
          "stopping.min_tokens",
          absl::StrCat("must be at most ", max_tokens, ", what the context leaves"));
    }
    return max_tokens;
  }
  if (stopping.max_tokens() > room) {
    return rpc::InvalidField("stopping.max_tokens",
                             absl::StrCat("must be at most ",
                                          room,
                                          " after a prompt of ",
                                          prompt_tokens,
                                          " tokens in a context of ",
                                          context,
                                          ", is ",
                                          stopping.max_tokens()));
  }
  return stopping.max_tokens();
}

// `policy` was checked. Of `auto` and the other tiers the worker chooses.
bool StaysDense(const std::string& policy) {
  const auto parsed = kv::ParseKvPolicy(policy, kv::KvPolicyDefaults::Widest());
  if (!parsed.ok()) {
    return false;
  }
  return parsed->format() != nullptr ? parsed->format()->id() == kv::KvFormatId::kDense
                                     : parsed->choice() == kv::KvChoice::kTierExact;
}

absl::Status CheckCapacity(const RequestPlan& plan, const WorkerLimits& limits) {
  if (!plan.dense_kv || !limits.max_pool_tokens.has_value() ||
      static_cast<uint64_t>(plan.total_tokens()) <= *limits.max_pool_tokens) {
    return absl::OkStatus();
  }
  return rpc::WithReason(rpc::InvalidField("stopping.max_tokens",
                                           absl::StrCat("prompt + n x max_tokens is ",
                                                        plan.total_tokens(),
                                                        " tokens; the largest KV pool holds ",
                                                        *limits.max_pool_tokens)),
                         rpc::reason::kExceedsCapacity,
                         {{"limit", absl::StrCat(*limits.max_pool_tokens)}});
}

}  // namespace

uint32_t ContextTokens(const ServedModel& model, const WorkerLimits& limits) {
  const auto context = static_cast<uint32_t>(model.config.max_position_embeddings);
  return std::min(context, limits.max_sequence_tokens.value_or(context));
}

worker::v1::SamplingParams ResolveSampling(const ServedModel& model,
                                           const inference::v1::GenerateRequest& request,
                                           uint32_t max_tokens) {
  const inference::v1::Sampling& asked = request.sampling();
  const SamplingDefaults& defaults = model.sampling;
  worker::v1::SamplingParams params;
  params.set_temperature(asked.has_temperature() ? asked.temperature() : defaults.temperature);
  params.set_top_p(asked.has_top_p() ? asked.top_p() : defaults.top_p);
  const auto vocab_size = static_cast<uint32_t>(model.config.vocab_size);
  params.set_top_k(std::min(asked.has_top_k() ? asked.top_k() : defaults.top_k, vocab_size));
  params.set_min_p(asked.has_min_p() ? asked.min_p() : defaults.min_p);
  params.set_presence_penalty(asked.presence_penalty());
  params.set_frequency_penalty(asked.frequency_penalty());
  params.set_repetition_penalty(asked.has_repetition_penalty() ? asked.repetition_penalty()
                                                               : defaults.repetition_penalty);
  *params.mutable_logit_bias() = asked.logit_bias();
  params.set_seed(asked.has_seed() ? asked.seed() : DrawSeed());
  params.set_n(asked.has_n() ? asked.n() : 1);
  params.set_max_tokens(max_tokens);
  params.set_min_tokens(request.stopping().min_tokens());
  if (!request.stopping().ignore_eos()) {
    for (const int32_t id : model.config.eos_token_ids) {
      params.add_stop_token_ids(static_cast<uint32_t>(id));
    }
  }
  params.mutable_stop_token_ids()->MergeFrom(request.stopping().stop_token_ids());
  if (request.output().has_logprobs()) {
    params.set_logprobs(request.output().logprobs());
  }
  return params;
}

absl::StatusOr<RequestPlan> PrepareRequest(const ServedModel& model,
                                           const PrepareOptions& options,
                                           const inference::v1::GenerateRequest& request,
                                           absl::Time now) {
  BATON_RETURN_IF_ERROR(CheckRequest(model, request));
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, EncodePrompt(model, request, now));
  const uint32_t context = ContextTokens(model, options.worker_limits);
  if (ids.empty()) {
    return rpc::InvalidField(PromptField(request), "the prompt has no tokens");
  }
  if (ids.size() >= context) {
    return PromptTooLong(PromptField(request), ids.size(), context);
  }
  RequestPlan plan;
  plan.model = model.name;
  BATON_ASSIGN_OR_RETURN(plan.kv_policy, CheckedKvPolicy(request.kv_policy()));
  plan.dense_kv = StaysDense(plan.kv_policy);
  plan.session_id = request.session_id();
  plan.prompt_tokens = static_cast<uint32_t>(ids.size());
  plan.prompt_token_ids = PackTokenIds(ids);
  BATON_ASSIGN_OR_RETURN(
      const uint32_t max_tokens,
      ResolveMaxTokens(
          request.stopping(), options.default_max_tokens, plan.prompt_tokens, context));
  plan.sampling = ResolveSampling(model, request, max_tokens);
  BATON_RETURN_IF_ERROR(CheckCapacity(plan, options.worker_limits));
  plan.output.stop.assign(request.stopping().stop().begin(), request.stopping().stop().end());
  plan.output.include_stop_str = request.stopping().include_stop_str();
  plan.output.min_tokens = request.stopping().min_tokens();
  plan.output.skip_special_tokens =
      !request.output().has_skip_special_tokens() || request.output().skip_special_tokens();
  return plan;
}

}  // namespace baton::router
