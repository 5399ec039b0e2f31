#include "services/lab/commands/inspect.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint.h"
#include "common/model/required_tensors.h"
#include "services/lab/flags.h"

namespace baton::lab {
namespace {

using checkpoint::ModelConfig;

std::string ArchitectureName(checkpoint::Architecture architecture) {
  switch (architecture) {
    case checkpoint::Architecture::kLlama:
      return "Llama";
    case checkpoint::Architecture::kQwen2:
      return "Qwen2";
    case checkpoint::Architecture::kQwen3:
      return "Qwen3";
    case checkpoint::Architecture::kMistral:
      return "Mistral";
  }
  return "unknown";
}

void Line(const std::string& name, const std::string& value) {
  std::cout << "  " << name << std::string(name.size() < 22 ? 22 - name.size() : 1, ' ') << value
            << "\n";
}

void PrintConfig(const ModelConfig& config) {
  std::cout << "configuration\n";
  Line("architecture", ArchitectureName(config.architecture));
  Line("hidden / layers", absl::StrCat(config.hidden_size, " / ", config.num_layers));
  Line("heads / KV heads", absl::StrCat(config.num_heads, " / ", config.num_kv_heads));
  Line("head dim", absl::StrCat(config.head_dim));
  Line("intermediate", absl::StrCat(config.intermediate_size));
  Line("vocabulary", absl::StrCat(config.vocab_size));
  Line("context", absl::StrCat(config.max_position_embeddings));
  Line("rope",
       absl::StrCat("theta ", config.rope_theta, ", llama3 factor ", config.rope_scaling.factor));
  Line("rms norm eps", absl::StrCat(config.rms_norm_eps));
  Line("tied embeddings", config.tie_word_embeddings ? "yes" : "no");
  Line("biases",
       absl::StrCat("qkv ", config.qkv_bias, ", o ", config.o_bias, ", mlp ", config.mlp_bias));
  Line("q/k norm", config.qk_norm ? "yes" : "no");
  const std::set<int32_t> windows(config.sliding_window.begin(), config.sliding_window.end());
  Line("sliding window", absl::StrCat(absl::StrJoin(windows, ", "), " (0: full attention)"));
  Line("published dtype", std::string(kernels::DTypeName(config.dtype)));
  Line("stop ids", absl::StrJoin(config.eos_token_ids, ", "));
}

void PrintKv(const ModelConfig& config) {
  const int32_t kv_layers = config.num_kv_cache_layers();
  const int64_t bytes = int64_t{kv_layers} * 2 * config.num_kv_heads * config.head_dim * 2;
  std::cout << "KV cache\n";
  Line("KV layers", absl::StrCat(kv_layers, " of ", config.num_layers));
  Line("bytes per token", absl::StrCat(bytes, " (bf16)"));
  if (!config.swiftkv()) {
    return;
  }
  std::cout << "SwiftKV\n";
  Line("full layers", absl::StrCat("0 .. ", config.num_key_value_layers - 1));
  Line("upper layers", absl::StrCat(config.num_key_value_layers, " .. ", config.num_layers - 1));
  Line("group size",
       absl::StrCat(
           config.key_value_group_size, " (", kv_layers - config.num_key_value_layers, " groups)"));
}

// What is wrong with a tensor, or nothing.
std::string Problem(const checkpoint::Checkpoint& checkpoint, const model::RequiredTensor& tensor) {
  const absl::StatusOr<checkpoint::TensorView> view = checkpoint.View(tensor.name);
  if (!view.ok()) {
    return std::string(view.status().message());
  }
  if (view->shape != tensor.shape) {
    return absl::StrCat("tensor `",
                        tensor.name,
                        "` has shape [",
                        absl::StrJoin(view->shape, ", "),
                        "], needed is [",
                        absl::StrJoin(tensor.shape, ", "),
                        "]");
  }
  return "";
}

absl::Status CheckTensors(const checkpoint::Checkpoint& checkpoint,
                          const std::vector<model::RequiredTensor>& required) {
  std::vector<std::string> problems;
  size_t used = 0;
  for (const model::RequiredTensor& tensor : required) {
    const std::string problem = Problem(checkpoint, tensor);
    if (!problem.empty()) {
      problems.push_back(problem);
    }
    used += checkpoint.Has(tensor.name) ? 1 : 0;
  }
  Line("needed", absl::StrCat(required.size()));
  Line("stored but not used", absl::StrCat(checkpoint.TensorNames().size() - used));
  for (const std::string& problem : problems) {
    std::cout << "  problem: " << problem << "\n";
  }
  Line("check", problems.empty() ? "ok" : absl::StrCat(problems.size(), " problems"));
  return problems.empty() ? absl::OkStatus() : absl::DataLossError(problems.front());
}

}  // namespace

absl::Status RunInspect() {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::Checkpoint> checkpoint,
                         OpenCheckpoint());
  const ModelConfig& config = checkpoint->config();
  PrintConfig(config);
  PrintKv(config);
  const std::vector<model::RequiredTensor> required = model::RequiredTensors(config);
  int64_t parameters = 0;
  for (const model::RequiredTensor& tensor : required) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) {
      elements *= extent;
    }
    parameters += elements;
  }
  std::cout << "weights\n";
  Line("parameters", absl::StrCat(parameters));
  Line("fingerprint", absl::StrCat(absl::Hex(checkpoint->fingerprint(), absl::kZeroPad16)));
  if (absl::GetFlag(FLAGS_random_weights)) {
    return absl::OkStatus();
  }
  return CheckTensors(*checkpoint, required);
}

}  // namespace baton::lab
