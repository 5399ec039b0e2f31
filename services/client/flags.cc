#include "services/client/flags.h"

#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

#include "common/rpc/tls_flags.h"
#include "services/client/connection.h"

ABSL_FLAG(std::string, router, "127.0.0.1:8000", "host:port of the router");
ABSL_FLAG(absl::Duration, timeout, absl::InfiniteDuration(), "deadline of every call");
ABSL_FLAG(std::string, model, "", "name of the model; default: the only one");
ABSL_FLAG(std::string, prompt, "", "text of the prompt");
ABSL_FLAG(std::string, chat, "", "a user's turn, rendered with the model's chat template");
ABSL_FLAG(std::string, prompt_file, "", "file that holds the prompt's text; - is standard input");
ABSL_FLAG(std::string, kv, "", "KV policy; default: the server's");
ABSL_FLAG(std::string,
          session,
          "",
          "conversation whose KV the server keeps for the next turn; chat makes one by itself");
ABSL_FLAG(absl::optional<float>, temperature, absl::nullopt, "0 is greedy");
ABSL_FLAG(absl::optional<float>,
          top_p,
          absl::nullopt,
          "least set of tokens with this probability; 1: all");
ABSL_FLAG(absl::optional<uint32_t>, top_k, absl::nullopt, "the k most likely tokens; 0: all");
ABSL_FLAG(absl::optional<float>,
          min_p,
          absl::nullopt,
          "tokens at least this fraction as likely as the likeliest; 0: all");
ABSL_FLAG(absl::optional<float>,
          presence_penalty,
          absl::nullopt,
          "off the logit of tokens that were generated, -2 to 2");
ABSL_FLAG(absl::optional<float>,
          frequency_penalty,
          absl::nullopt,
          "the same, times how often, -2 to 2");
ABSL_FLAG(absl::optional<float>,
          repetition_penalty,
          absl::nullopt,
          "divides logits of tokens seen, prompt included; 1: none");
ABSL_FLAG(absl::optional<uint64_t>, seed, absl::nullopt, "default: drawn by the router");
ABSL_FLAG(absl::optional<uint32_t>, n, absl::nullopt, "sequences to generate");
ABSL_FLAG(absl::optional<uint32_t>, max_tokens, absl::nullopt, "default: the server's");
ABSL_FLAG(uint32_t, min_tokens, 0, "no stop before so many tokens");
ABSL_FLAG(std::vector<std::string>, stop, {}, "stop strings, separated by commas");
ABSL_FLAG(bool, include_stop_str, false, "deliver the stop string too");
ABSL_FLAG(bool, ignore_eos, false, "generate until max_tokens");
ABSL_FLAG(absl::optional<uint32_t>, logprobs, absl::nullopt, "also the k most likely tokens");
ABSL_FLAG(bool, skip_special_tokens, true, "leave special tokens out of the text");
ABSL_FLAG(std::string, request_id, "", "default: made by the router");

namespace baton::client {
namespace {

constexpr size_t kMaxPromptBytes = size_t{64} << 20;

void SetSampling(inference::v1::Sampling* sampling) {
  const auto set = [sampling](const auto& flag, auto setter) {
    if (const auto value = absl::GetFlag(flag); value.has_value()) {
      (sampling->*setter)(*value);
    }
  };
  using inference::v1::Sampling;
  set(FLAGS_temperature, &Sampling::set_temperature);
  set(FLAGS_top_p, &Sampling::set_top_p);
  set(FLAGS_top_k, &Sampling::set_top_k);
  set(FLAGS_min_p, &Sampling::set_min_p);
  set(FLAGS_presence_penalty, &Sampling::set_presence_penalty);
  set(FLAGS_frequency_penalty, &Sampling::set_frequency_penalty);
  set(FLAGS_repetition_penalty, &Sampling::set_repetition_penalty);
  set(FLAGS_seed, &Sampling::set_seed);
  set(FLAGS_n, &Sampling::set_n);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> ConnectionFromFlags() {
  return Connection::Open({.router = absl::GetFlag(FLAGS_router),
                           .tls = rpc::TlsOptionsFromFlags(),
                           .timeout = absl::GetFlag(FLAGS_timeout)});
}

void SetGenerationFields(inference::v1::GenerateRequest* request) {
  request->set_request_id(absl::GetFlag(FLAGS_request_id));
  request->set_model(absl::GetFlag(FLAGS_model));
  request->set_kv_policy(absl::GetFlag(FLAGS_kv));
  request->set_session_id(absl::GetFlag(FLAGS_session));
  SetSampling(request->mutable_sampling());
  inference::v1::Stopping* stopping = request->mutable_stopping();
  if (const auto max_tokens = absl::GetFlag(FLAGS_max_tokens); max_tokens.has_value()) {
    stopping->set_max_tokens(*max_tokens);
  }
  stopping->set_min_tokens(absl::GetFlag(FLAGS_min_tokens));
  for (const std::string& stop : absl::GetFlag(FLAGS_stop)) {
    stopping->add_stop(stop);
  }
  stopping->set_include_stop_str(absl::GetFlag(FLAGS_include_stop_str));
  stopping->set_ignore_eos(absl::GetFlag(FLAGS_ignore_eos));
  if (const auto logprobs = absl::GetFlag(FLAGS_logprobs); logprobs.has_value()) {
    request->mutable_output()->set_logprobs(*logprobs);
  }
  request->mutable_output()->set_skip_special_tokens(absl::GetFlag(FLAGS_skip_special_tokens));
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("can't read `", path, "`"));
    }
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::string text;
  std::vector<char> buffer(size_t{1} << 16);
  while (stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         stream.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(stream.gcount()));
    if (text.size() > kMaxPromptBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("`", path, "` is larger than ", kMaxPromptBytes, " bytes"));
    }
  }
  return text;
}

}  // namespace baton::client
