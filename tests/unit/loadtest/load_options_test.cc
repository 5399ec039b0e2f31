// Loads that contradict themselves.
#include "services/loadtest/load_options.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::loadtest {
namespace {

using ::testing::HasSubstr;

LoadOptions Valid() {
  LoadOptions options;
  options.arrivals.rate = 5;
  options.driver.max_requests = 10;
  return options;
}

std::string Refusal(const LoadOptions& options) {
  const absl::Status status = Validate(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LoadOptionsTest, OneKindOfArrivalsIsNeeded) {
  LoadOptions options = Valid();
  EXPECT_TRUE(Validate(options).ok());
  options.arrivals.stages = "10s@1";
  EXPECT_THAT(Refusal(options), HasSubstr("only one of --rate, --stages"));
  options.arrivals = {};
  EXPECT_THAT(Refusal(options), HasSubstr("--concurrency for a closed one"));
  options.driver.concurrency = 4;
  EXPECT_TRUE(Validate(options).ok());
}

TEST(LoadOptionsTest, ALoadHasToEnd) {
  LoadOptions options = Valid();
  options.driver.max_requests = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("--duration or --requests"));
  options.workload.cases = "cases.jsonl";
  EXPECT_TRUE(Validate(options).ok());
  options.workload.repeat = true;
  EXPECT_THAT(Refusal(options), HasSubstr("--duration or --requests"));
  options.driver.duration = absl::Seconds(1);
  EXPECT_TRUE(Validate(options).ok());
}

TEST(LoadOptionsTest, OneWorkloadIsEnough) {
  LoadOptions options = Valid();
  options.workload.cases = "cases.jsonl";
  options.workload.sharegpt = "chats.jsonl";
  EXPECT_THAT(Refusal(options), HasSubstr("only one of --cases and --sharegpt"));
  options = Valid();
  options.arrivals.rate = 0;
  options.arrivals.trace = "trace.jsonl";
  EXPECT_TRUE(Validate(options).ok());
  options.workload.cases = "cases.jsonl";
  EXPECT_THAT(Refusal(options), HasSubstr("--trace brings its own"));
}

TEST(LoadOptionsTest, NumbersHaveTheirRanges) {
  LoadOptions options = Valid();
  options.arrivals.burstiness = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("--burstiness"));
  options = Valid();
  options.workload.turns = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("--turns"));
}

}  // namespace
}  // namespace baton::loadtest
