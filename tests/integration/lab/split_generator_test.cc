// Prefill and decode engines in one process, as baton-lab eval --role split joins them.
#include <numeric>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "common/engine/request.h"
#include "common/worker/worker_options.h"
#include "services/lab/eval/generator.h"

namespace baton::lab {
namespace {

// Nobody renews reservations here, and a long prompt takes longer than workers' leases last.
TEST(SplitGeneratorTest, APrefillMayTakeLongerThanALease) {
  worker::WorkerOptions options;
  options.model_dir = std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle";
  options.threads = 1;
  options.engine.lease = absl::Milliseconds(1);
  options.engine.kv_pool_bytes = 64 << 20;
  const auto generator = MakeSplitGenerator(options);
  ASSERT_TRUE(generator.ok()) << generator.status();
  engine::GenerateRequest request;
  request.request_id = "long";
  request.prompt.resize(1024);
  std::iota(request.prompt.begin(), request.prompt.end(), 0);
  request.sampling.max_tokens = 2;
  const auto answer = (*generator)->Generate(std::move(request));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->token_ids.size(), 2u);
}

}  // namespace
}  // namespace baton::lab
