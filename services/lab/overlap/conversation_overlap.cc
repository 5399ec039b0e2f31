#include "services/lab/overlap/conversation_overlap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/conversation.h"
#include "common/eval/eval_case.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_format.h"
#include "common/text/load_tokenizer.h"
#include "kernels/core/thread_pool.h"
#include "services/lab/eval/encode_case.h"
#include "services/lab/overlap/key_basis.h"
#include "services/lab/overlap/overlap_table.h"
#include "services/lab/overlap/plain_keys.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {
namespace {

// The keys of one prompt by stored layer, all KV heads side by side.
struct PromptKeys {
  std::vector<KeyBasis> bases;                 // of all tokens
  std::vector<std::vector<double>> new_grams;  // of the new ones
};

int64_t KeyWidth(const TableModel& model) {
  return int64_t{model.dimensions().kv_heads} * model.dimensions().head_dim;
}

// Tokens that both prompts begin with.
size_t CommonTokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

absl::StatusOr<PromptKeys> ComputeKeys(std::span<const int32_t> prompt,
                                       size_t first_new,
                                       TableModel& model) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  const int64_t width = KeyWidth(model);
  WorkingPages pages(model.dimensions(), model.dtype(), tokens, tokens);
  BATON_RETURN_IF_ERROR(model.Prefill(prompt, pages, {}).status());
  const kv::WorkingKv working = {.pages = pages.pages(), .table = pages.prompt_table()};
  const KeyRotation rotation = {
      .ops = model.ops(),
      .exec = model.exec(),
      .inverse_frequencies = model.model().rope_inverse_frequencies().data()};
  PromptKeys result;
  std::vector<std::vector<double>> grams;
  for (int32_t layer = 0; layer < model.dimensions().layers; ++layer) {
    BATON_ASSIGN_OR_RETURN(
        const std::vector<float> keys,
        ReadPlainKeys(rotation, working, layer, model.model().key_bias(layer), tokens));
    const size_t old = first_new * static_cast<size_t>(width);
    grams.push_back(GramMatrix(std::span(keys).first(old), width));
    result.new_grams.push_back(GramMatrix(std::span(keys).subspan(old), width));
    std::ranges::transform(
        grams.back(), result.new_grams.back(), grams.back().begin(), std::plus<>());
  }
  result.bases.resize(grams.size());
  const auto layers = static_cast<int64_t>(grams.size());
  model.exec().pool->ParallelFor(layers, [&](int64_t layer, int /*thread*/) {
    const auto index = static_cast<size_t>(layer);
    result.bases[index] = KeyBasis(std::move(grams[index]), width);
  });
  return result;
}

void AddLayers(size_t turn, const PromptKeys& first, const PromptKeys& keys, OverlapTable& table) {
  for (size_t layer = 0; layer < keys.bases.size(); ++layer) {
    const KeyBasis& best = keys.bases[layer];
    const std::vector<double>& fresh = keys.new_grams[layer];
    for (size_t i = 0; i < table.ranks().size(); ++i) {
      const int64_t rank = table.ranks()[i];
      table.AddLayer(turn,
                     i,
                     {.overlap = first.bases[layer].Overlap(best, rank),
                      .first_keeps = first.bases[layer].KeptEnergy(fresh, rank),
                      .best_keeps = best.KeptEnergy(fresh, rank)});
    }
  }
}

absl::Status CheckRanks(const std::vector<int64_t>& ranks, int64_t width, size_t tokens) {
  for (const int64_t rank : ranks) {
    if (rank < 1 || rank > width || static_cast<size_t>(rank) > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("rank ",
                                                     rank,
                                                     ": keys are ",
                                                     width,
                                                     " wide and the first prompt has ",
                                                     tokens,
                                                     " tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddConversation(const eval::EvalCase& conversation,
                             const text::ModelTokenizer& tokenizer,
                             TableModel& model,
                             OverlapTable& table) {
  if (conversation.follow_ups.empty()) {
    return absl::InvalidArgumentError("the case has no `follow_ups`, so no later turns");
  }
  std::optional<PromptKeys> first;
  std::vector<int32_t> before;
  size_t index = 0;
  for (std::optional<eval::EvalCase> turn = conversation; turn.has_value();
       turn = eval::NextTurn(*turn, turn->answer)) {
    BATON_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, EncodeCase(*turn, tokenizer));
    if (!first.has_value()) {
      BATON_RETURN_IF_ERROR(CheckRanks(table.ranks(), KeyWidth(model), prompt.size()));
    }
    const size_t common = CommonTokens(before, prompt);
    BATON_ASSIGN_OR_RETURN(PromptKeys keys, ComputeKeys(prompt, common, model));
    table.AddTurn(
        index, static_cast<int64_t>(prompt.size()), static_cast<int64_t>(prompt.size() - common));
    AddLayers(index, first.has_value() ? *first : keys, keys, table);
    if (!first.has_value()) {
      first = std::move(keys);
    }
    before = std::move(prompt);
    ++index;
  }
  return absl::OkStatus();
}

}  // namespace baton::lab
