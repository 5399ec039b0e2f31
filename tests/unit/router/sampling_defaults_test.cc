#include "services/router/model/sampling_defaults.h"

#include "gtest/gtest.h"

namespace baton::router {
namespace {

TEST(SamplingDefaultsTest, NoFileMeansPlainSampling) {
  const auto defaults = ParseSamplingDefaults("");
  ASSERT_TRUE(defaults.ok());
  EXPECT_FLOAT_EQ(defaults->temperature, 1.0f);
  EXPECT_FLOAT_EQ(defaults->top_p, 1.0f);
  EXPECT_EQ(defaults->top_k, 0u);
}

TEST(SamplingDefaultsTest, TakesTheModelsValues) {
  const auto defaults = ParseSamplingDefaults(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
          "repetition_penalty": 1.1})");
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_FLOAT_EQ(defaults->temperature, 0.6f);
  EXPECT_FLOAT_EQ(defaults->top_p, 0.9f);
  EXPECT_EQ(defaults->top_k, 20u);
  EXPECT_FLOAT_EQ(defaults->repetition_penalty, 1.1f);
}

TEST(SamplingDefaultsTest, DoSampleFalseIsGreedy) {
  const auto defaults = ParseSamplingDefaults(R"({"do_sample": false, "temperature": 0.6})");
  ASSERT_TRUE(defaults.ok());
  EXPECT_FLOAT_EQ(defaults->temperature, 0.0f);
}

TEST(SamplingDefaultsTest, NamesTheFieldThatIsWrong) {
  for (const char* text : {R"({"top_p": 2})", R"({"top_p": "x"})", R"({"top_p": 0})"}) {
    const auto defaults = ParseSamplingDefaults(text);
    ASSERT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(defaults.status().message().find("top_p"), absl::string_view::npos);
  }
  EXPECT_FALSE(ParseSamplingDefaults("[]").ok());
  EXPECT_FALSE(ParseSamplingDefaults("{").ok());
}

}  // namespace
}  // namespace baton::router
