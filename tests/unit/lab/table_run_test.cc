#include "services/lab/table/table_run.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/kv/codec/kv_policy.h"

namespace baton::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParsePoliciesTest, TakesFormatsAndBaselinesInOrder) {
  const auto policies = ParsePolicies("int4;dense;quest:budget=0.5,page=8;diffkv:al=0.1;");
  ASSERT_TRUE(policies.ok()) << policies.status();
  std::vector<std::string> names;
  for (const kv::KvPolicy& policy : *policies) {
    names.push_back(policy.CanonicalString());
  }
  EXPECT_THAT(names, ElementsAre("int4", "dense", "quest:budget=0.5,page=8", "diffkv:al=0.1"));
}

TEST(ParsePoliciesTest, NamesWhatCanNotBeInATable) {
  for (const auto& [list, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "at least one"},
           {"dense;zip", "zip"},
           {"dense;auto", "auto"},
           {"tier=high", "tier=high"},
           {"int4;quest:budget=16;quest:page=16,budget=16", "twice"}}) {
    const absl::Status status = ParsePolicies(list).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

}  // namespace
}  // namespace baton::lab
