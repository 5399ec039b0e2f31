#include "services/lab/commands/overlap.h"

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/config/check_flag.h"
#include "common/eval/eval_case.h"
#include "common/eval/eval_flags.h"
#include "common/text/load_tokenizer.h"
#include "common/worker/worker_options.h"
#include "services/lab/commands/eval.h"
#include "services/lab/flags.h"
#include "services/lab/overlap/conversation_overlap.h"
#include "services/lab/overlap/overlap_table.h"
#include "services/lab/table/table_model.h"

ABSL_FLAG(std::vector<std::string>,
          rank,
          std::vector<std::string>({"32", "64", "96"}),
          "overlap: ranks of the basis, separated by commas; at most KV heads x head dim.");

namespace baton::lab {
namespace {

// What a flag may say; a model's keys set a limit of their own.
constexpr int64_t kMaxRank = 1 << 16;

absl::StatusOr<std::vector<int64_t>> RanksFromFlag() {
  std::vector<int64_t> ranks;
  for (const std::string& text : absl::GetFlag(FLAGS_rank)) {
    int64_t rank = 0;
    if (!absl::SimpleAtoi(text, &rank) || rank < 1 || rank > kMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat(
          "flag --rank has \"", text, "\"; it must be numbers in 1..", kMaxRank, " and commas"));
    }
    ranks.push_back(rank);
  }
  if (ranks.empty()) {
    return absl::InvalidArgumentError("flag --rank must have a rank");
  }
  return ranks;
}

}  // namespace

absl::Status RunOverlap() {
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("model", absl::GetFlag(FLAGS_model)));
  BATON_ASSIGN_OR_RETURN(std::vector<int64_t> ranks, RanksFromFlag());
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> cases, eval::CasesFromFlags());
  BATON_ASSIGN_OR_RETURN(worker::WorkerOptions options, EvalOptionsFromFlags());
  BATON_ASSIGN_OR_RETURN(const auto tokenizer, text::LoadTokenizer(options.model_dir));
  BATON_ASSIGN_OR_RETURN(const auto model, TableModel::Create(std::move(options)));
  OverlapTable table(std::move(ranks));
  for (const eval::EvalCase& conversation : cases) {
    const absl::Status added = AddConversation(conversation, tokenizer, *model, table);
    BATON_RETURN_IF_ERROR(WithContext(added, absl::StrCat("case ", conversation.id)));
  }
  std::cout << table.Format();
  return absl::OkStatus();
}

}  // namespace baton::lab
