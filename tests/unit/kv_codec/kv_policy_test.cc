#include "common/kv/codec/kv_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace baton::kv {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(KvPolicyTest, DenseRoundTripsThroughItsCanonicalString) {
  const auto policy = ParseKvPolicy("dense");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ(policy->format, KvFormatId::kDense);
  EXPECT_EQ(policy->CanonicalString(), "dense");
}

TEST(KvPolicyTest, AnythingElseIsRefusedAndNamed) {
  for (const std::string text : {"", "Dense", "dense ", "dense:x=1", "diffkv", "k8v4"}) {
    const auto policy = ParseKvPolicy(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("\"" + text + "\""));
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr("known: dense"));
  }
}

TEST(KvPolicyTest, MessageIsBoundedAndPrintableWhateverWasSent) {
  const auto policy = ParseKvPolicy(std::string(100000, '\x01'));
  ASSERT_FALSE(policy.ok());
  EXPECT_LT(policy.status().message().size(), 500u);
  EXPECT_EQ(policy.status().message().find('\x01'), absl::string_view::npos);
}

}  // namespace
}  // namespace baton::kv
