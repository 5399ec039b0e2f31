#include "services/lab/baselines/make_baseline.h"

#include <memory>
#include <variant>

#include "common/kv/codec/policy_params.h"
#include "services/lab/baselines/baseline.h"
#include "services/lab/baselines/h2o.h"
#include "services/lab/baselines/int4.h"
#include "services/lab/baselines/kivi.h"
#include "services/lab/baselines/loki.h"
#include "services/lab/baselines/prompt_attention.h"
#include "services/lab/baselines/quest.h"
#include "services/lab/baselines/snapkv.h"
#include "services/lab/baselines/static.h"
#include "services/lab/baselines/streaming.h"

namespace baton::lab {
namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};

}  // namespace

std::unique_ptr<Baseline> BaselineFactory::Make(const kv::KvBaselinePolicy& policy) {
  using Made = std::unique_ptr<Baseline>;
  const auto budget = [&](const auto& params) {
    return BudgetTokens(params.budget, setup_.prompt_tokens);
  };
  return std::visit(
      Overloaded{
          [&](const kv::Int4Policy&) -> Made { return std::make_unique<Int4Baseline>(setup_); },
          [&](const kv::KiviPolicy&) -> Made { return std::make_unique<KiviBaseline>(setup_); },
          [&](const kv::SnapKvPolicy& snapkv) -> Made {
            const int64_t first = SnapKvBaseline::FirstObserved(setup_.prompt_tokens);
            return std::make_unique<SnapKvBaseline>(setup_, budget(snapkv), Attention(first));
          },
          [&](const kv::H2oPolicy& h2o) -> Made {
            return std::make_unique<H2oBaseline>(setup_, budget(h2o), Attention(0));
          },
          [&](const kv::StreamingPolicy& streaming) -> Made {
            return std::make_unique<StreamingBaseline>(setup_, budget(streaming));
          },
          [&](const kv::QuestPolicy& quest) -> Made {
            return std::make_unique<QuestBaseline>(setup_, budget(quest), quest.page_tokens);
          },
          [&](const kv::LokiPolicy& loki) -> Made {
            return std::make_unique<LokiBaseline>(setup_, budget(loki));
          },
          [&](const kv::StaticPolicy& params) -> Made {
            const int64_t first = StaticBaseline::FirstObserved(setup_.prompt_tokens);
            return std::make_unique<StaticBaseline>(setup_, params, Attention(first));
          }},
      policy);
}

std::shared_ptr<PromptAttention> BaselineFactory::Attention(int64_t first_observed) {
  std::shared_ptr<PromptAttention>& attention = attention_[first_observed];
  if (attention == nullptr) {
    attention = std::make_shared<PromptAttention>(setup_, first_observed);
  }
  return attention;
}

}  // namespace baton::lab
