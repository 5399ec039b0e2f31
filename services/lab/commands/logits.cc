#include "services/lab/commands/logits.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "common/base/status_macros.h"
#include "common/checkpoint/read_file.h"
#include "common/checkpoint/safetensors_writer.h"
#include "common/config/check_flag.h"
#include "common/worker/sequence_runner.h"
#include "services/lab/flags.h"

ABSL_FLAG(std::string, input_ids, "", "logits: JSON file, an array of token ids.");
ABSL_FLAG(int32_t, greedy, 0, "logits: tokens to generate greedily after the input.");

namespace baton::lab {
namespace {

constexpr size_t kMaxInputBytes = 64 << 20;
constexpr int32_t kMaxGreedy = 1 << 20;

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& path, int32_t vocab_size) {
  BATON_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadFile(path, kMaxInputBytes));
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array() || parsed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " must hold a JSON array of at least one token id"));
  }
  std::vector<int32_t> ids;
  ids.reserve(parsed.size());
  for (const nlohmann::json& id : parsed) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": element ", ids.size(), " is not a token id in [0, ", vocab_size, ")"));
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

int32_t MostLikely(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<std::vector<int64_t>> GenerateGreedily(worker::SequenceRunner& runner,
                                                      std::span<const float> last_logits,
                                                      int32_t count) {
  std::vector<int64_t> generated;
  std::vector<float> logits(last_logits.begin(), last_logits.end());
  while (static_cast<int32_t>(generated.size()) < count) {
    const int32_t next = MostLikely(logits);
    generated.push_back(next);
    if (static_cast<int32_t>(generated.size()) < count) {
      BATON_RETURN_IF_ERROR(runner.Append(std::span(&next, 1), logits));
    }
  }
  return generated;
}

template <typename T>
checkpoint::TensorView View(const std::vector<T>& values,
                            kernels::DType dtype,
                            std::vector<int64_t> shape) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

absl::Status WriteOutput(const std::string& path,
                         const std::vector<float>& logits,
                         int64_t rows,
                         const std::vector<int64_t>& greedy) {
  std::vector<checkpoint::NamedTensor> tensors;
  const auto vocab = static_cast<int64_t>(logits.size()) / rows;
  tensors.push_back({"logits", View(logits, kernels::DType::kF32, {rows, vocab})});
  if (!greedy.empty()) {
    const auto count = static_cast<int64_t>(greedy.size());
    tensors.push_back({"greedy", View(greedy, kernels::DType::kI64, {count})});
  }
  return checkpoint::WriteSafetensors(path, tensors);
}

}  // namespace

absl::Status RunLogits() {
  const std::string input_path = absl::GetFlag(FLAGS_input_ids);
  const std::string out_path = absl::GetFlag(FLAGS_out);
  const int32_t num_greedy = absl::GetFlag(FLAGS_greedy);
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("input-ids", input_path));
  BATON_RETURN_IF_ERROR(config::CheckFlagSet("out", out_path));
  BATON_RETURN_IF_ERROR(config::CheckFlagRange("greedy", num_greedy, 0, kMaxGreedy));
  BATON_ASSIGN_OR_RETURN(const kernels::DType dtype, ComputeDType());
  BATON_ASSIGN_OR_RETURN(const int threads, ComputeThreads());
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::Checkpoint> checkpoint,
                         OpenCheckpoint());
  const checkpoint::ModelConfig& config = checkpoint->config();
  BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         ReadTokenIds(input_path, config.vocab_size));
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (num_tokens + num_greedy > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(num_tokens,
                                                   " input tokens and ",
                                                   num_greedy,
                                                   " greedy tokens exceed max_position_embeddings ",
                                                   config.max_position_embeddings));
  }
  BATON_ASSIGN_OR_RETURN(
      const std::unique_ptr<worker::SequenceRunner> runner,
      worker::SequenceRunner::Create(
          *checkpoint, absl::GetFlag(FLAGS_device), threads, dtype, num_tokens + num_greedy));
  const auto vocab = static_cast<size_t>(config.vocab_size);
  std::vector<float> logits(ids.size() * vocab);
  BATON_RETURN_IF_ERROR(runner->Append(ids, logits));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> greedy,
                         GenerateGreedily(*runner, std::span(logits).last(vocab), num_greedy));
  return WriteOutput(out_path, logits, num_tokens, greedy);
}

}  // namespace baton::lab
