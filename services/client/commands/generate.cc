#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/eval/case_list.h"
#include "common/eval/read_cases.h"
#include "services/client/accounting.h"
#include "services/client/case_request.h"
#include "services/client/commands/commands.h"
#include "services/client/flags.h"
#include "services/client/generation.h"

ABSL_FLAG(std::string, case, "", "evaluation set (JSONL, gzip allowed) to take the prompt from");
ABSL_FLAG(std::string, case_id, "", "id of the case; default: the first of the set");

namespace baton::client {
namespace {

absl::StatusOr<eval::EvalCase> CaseFromFlags() {
  BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> cases,
                         eval::ReadCases(absl::GetFlag(FLAGS_case)));
  if (!absl::GetFlag(FLAGS_case_id).empty()) {
    BATON_ASSIGN_OR_RETURN(const std::vector<eval::EvalCase> selected,
                           eval::SelectCases(cases, {absl::GetFlag(FLAGS_case_id)}));
    return selected.front();
  }
  if (cases.empty()) {
    return absl::InvalidArgumentError("--case names a set without cases");
  }
  return cases.front();
}

// The prompt of --prompt, --chat or --prompt_file.
absl::Status SetPrompt(inference::v1::GenerateRequest* request) {
  const std::string chat = absl::GetFlag(FLAGS_chat);
  const std::string path = absl::GetFlag(FLAGS_prompt_file);
  if (!chat.empty()) {
    inference::v1::Message* message = request->mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(chat);
  } else if (!path.empty()) {
    BATON_ASSIGN_OR_RETURN(*request->mutable_text(), ReadTextFile(path));
  } else if (!absl::GetFlag(FLAGS_prompt).empty()) {
    request->set_text(absl::GetFlag(FLAGS_prompt));
  } else {
    return absl::InvalidArgumentError(
        "give the prompt with --prompt, --chat, --prompt_file or --case");
  }
  return absl::OkStatus();
}

// Streams the first sequence, then prints the others whole.
absl::StatusOr<Generation> Stream(const inference::v1::GenerateRequest& request) {
  BATON_ASSIGN_OR_RETURN(const auto connection, ConnectionFromFlags());
  const absl::StatusOr<Generation> generation =
      Generate(*connection, request, [](uint32_t index, std::string_view text) {
        if (index == 0) {
          std::cout << text << std::flush;
        }
      });
  std::cout << std::endl;
  if (generation.ok()) {
    for (size_t i = 1; i < generation->sequences.size(); ++i) {
      std::cout << "--- sequence " << i << "\n" << generation->sequences[i].text << std::endl;
    }
    std::cerr << AccountingTable(*generation);
  }
  return generation;
}

}  // namespace

absl::Status RunGenerate() {
  inference::v1::GenerateRequest request;
  SetGenerationFields(&request);
  if (absl::GetFlag(FLAGS_case).empty()) {
    BATON_RETURN_IF_ERROR(SetPrompt(&request));
    return Stream(request).status();
  }
  BATON_ASSIGN_OR_RETURN(const eval::EvalCase eval_case, CaseFromFlags());
  SetCase(eval_case, &request);
  BATON_ASSIGN_OR_RETURN(const Generation generation, Stream(request));
  if (generation.sequences.empty() ||
      !eval::IsCorrect(eval_case, generation.sequences.front().text)) {
    return absl::FailedPreconditionError(
        absl::StrCat("wrong answer to case ", eval_case.id, "; expected: ", eval_case.answer));
  }
  std::cerr << "the answer is right\n";
  return absl::OkStatus();
}

}  // namespace baton::client
