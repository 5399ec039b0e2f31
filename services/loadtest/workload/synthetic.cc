#include "services/loadtest/workload/synthetic.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "services/loadtest/arrivals/trace.h"
#include "services/loadtest/workload/prompt_source.h"
#include "services/loadtest/workload/workload.h"

namespace baton::loadtest {
namespace {

using inference::v1::GenerateRequest;

// Kinds of random streams that are drawn from one seed.
enum class Stream : uint64_t { kPrefix = 1, kConversation = 2, kBlock = 3 };

// A generator that depends on nothing but these, so that the order of use does not matter.
std::mt19937_64 Generator(uint64_t seed, Stream stream, uint64_t index) {
  std::seed_seq sequence{static_cast<uint32_t>(seed),
                         static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(stream),
                         static_cast<uint32_t>(index),
                         static_cast<uint32_t>(index >> 32)};
  return std::mt19937_64(sequence);
}

// What all conversations of a run share.
struct Shared {
  SyntheticOptions options;
  PromptSource source;
  int64_t max_tokens = 0;  // of prompt and answer; 0: unknown
};

void SetStopping(int64_t max_tokens, bool ignore_eos, GenerateRequest* request) {
  request->mutable_stopping()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  request->mutable_stopping()->set_ignore_eos(ignore_eos);
}

// Cuts the front of `tokens` until they fit with `output` more, one of them stays.
void CutToContext(int64_t context, int64_t output, std::vector<uint32_t>* tokens) {
  const int64_t room = std::max<int64_t>(context - output, 1);
  const int64_t excess = static_cast<int64_t>(tokens->size()) - room;
  if (context > 0 && excess > 0) {
    tokens->erase(tokens->begin(), tokens->begin() + excess);
  }
}

class SyntheticConversation final : public Conversation {
 public:
  SyntheticConversation(std::shared_ptr<const Shared> shared, uint64_t index)
      : shared_(std::move(shared)),
        random_(Generator(shared_->options.seed, Stream::kConversation, index)) {}

  std::optional<GenerateRequest> NextTurn(const Answer* previous) override {
    const SyntheticOptions& options = shared_->options;
    if (turn_++ == options.turns) {
      return std::nullopt;
    }
    if (previous == nullptr) {
      AppendPrefix();
    } else {
      tokens_.insert(tokens_.end(), previous->token_ids.begin(), previous->token_ids.end());
      text_ += previous->text;
    }
    const int64_t input = options.input.Sample(random_);
    const int64_t output = options.output.Sample(random_);
    GenerateRequest request;
    if (options.words) {
      PromptSource::AppendWords(input, random_, &text_);
      request.set_text(text_);
    } else {
      shared_->source.AppendTokens(input, random_, &tokens_);
      CutToContext(shared_->max_tokens, output, &tokens_);
      request.mutable_token_ids()->mutable_ids()->Add(tokens_.begin(), tokens_.end());
    }
    SetStopping(output, options.ignore_eos, &request);
    return request;
  }
  bool wants_answer() const override { return turn_ < shared_->options.turns; }

 private:
  void AppendPrefix() {
    const SyntheticOptions& options = shared_->options;
    const int64_t which = std::uniform_int_distribution<int64_t>(0, options.prefixes - 1)(random_);
    std::mt19937_64 random = Generator(options.seed, Stream::kPrefix, static_cast<uint64_t>(which));
    if (options.words) {
      PromptSource::AppendWords(options.prefix_length, random, &text_);
    } else {
      shared_->source.AppendTokens(options.prefix_length, random, &tokens_);
    }
  }

  const std::shared_ptr<const Shared> shared_;
  std::mt19937_64 random_;
  int64_t turn_ = 0;
  std::vector<uint32_t> tokens_;  // or
  std::string text_;              // the conversation so far
};

class SyntheticWorkload final : public Workload {
 public:
  explicit SyntheticWorkload(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  std::unique_ptr<Conversation> Next() override {
    return std::make_unique<SyntheticConversation>(shared_, next_++);
  }
  int64_t Remaining() const override { return kEndless; }

 private:
  const std::shared_ptr<const Shared> shared_;
  uint64_t next_ = 0;
};

// A conversation of one turn that is known beforehand.
class SingleRequest final : public Conversation {
 public:
  explicit SingleRequest(GenerateRequest request) : request_(std::move(request)) {}
  std::optional<GenerateRequest> NextTurn(const Answer* previous) override {
    return previous == nullptr ? std::optional(std::move(request_)) : std::nullopt;
  }

 private:
  GenerateRequest request_;
};

class TraceWorkload final : public Workload {
 public:
  TraceWorkload(std::vector<TraceEntry> trace, const inference::v1::ModelInfo& model, uint64_t seed)
      : trace_(std::move(trace)),
        source_(model),
        max_tokens_(model.max_sequence_tokens()),
        seed_(seed) {}

  std::unique_ptr<Conversation> Next() override {
    if (next_ == trace_.size()) {
      return nullptr;
    }
    const TraceEntry& entry = trace_[next_];
    std::vector<uint32_t> tokens;
    for (const uint64_t block : entry.blocks) {
      std::mt19937_64 random = Generator(seed_, Stream::kBlock, block);
      source_.AppendTokens(std::min(Lacking(entry, tokens), kTraceBlockTokens), random, &tokens);
    }
    std::mt19937_64 random = Generator(seed_, Stream::kConversation, next_);
    source_.AppendTokens(Lacking(entry, tokens), random, &tokens);
    ++next_;
    CutToContext(max_tokens_, entry.output_tokens, &tokens);
    GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(tokens.begin(), tokens.end());
    SetStopping(entry.output_tokens, /*ignore_eos=*/true, &request);
    return std::make_unique<SingleRequest>(std::move(request));
  }
  int64_t Remaining() const override { return static_cast<int64_t>(trace_.size() - next_); }

 private:
  static int64_t Lacking(const TraceEntry& entry, const std::vector<uint32_t>& tokens) {
    return entry.input_tokens - static_cast<int64_t>(tokens.size());
  }

  const std::vector<TraceEntry> trace_;
  const PromptSource source_;
  const int64_t max_tokens_;
  const uint64_t seed_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Workload> MakeSyntheticWorkload(const SyntheticOptions& options,
                                                const inference::v1::ModelInfo& model) {
  return std::make_unique<SyntheticWorkload>(std::make_shared<Shared>(
      Shared{.options = options,
             .source = PromptSource(model),
             .max_tokens = static_cast<int64_t>(model.max_sequence_tokens())}));
}

std::unique_ptr<Workload> MakeTraceWorkload(std::vector<TraceEntry> trace,
                                            const inference::v1::ModelInfo& model,
                                            uint64_t seed) {
  return std::make_unique<TraceWorkload>(std::move(trace), model, seed);
}

}  // namespace baton::loadtest
