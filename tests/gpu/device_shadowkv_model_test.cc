// A model on the device whose sequence is in KV format `shadowkv`: the prompt is factored, coded
// and decoded there, blocks of generated tokens too.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/gpu/support/encoded_model_run.h"

namespace baton::model {
namespace {

// Rounding activations to bf16 between ops, which the host does not, moves logits by this much of
// the largest; and by more in a step, for chunks whose scores are close are selected the other way.
constexpr LogitTolerances kTolerances = {.mean = 0.04, .step = 0.2};

class DeviceShadowKvModelTest
    : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(DeviceShadowKvModelTest, LogitsAreThoseOfTheHost) {
  ExpectLogitsOfTheHost(std::get<0>(GetParam()), std::get<1>(GetParam()), kTolerances);
}

// Local windows of which a block is due within the generated tokens.
INSTANTIATE_TEST_SUITE_P(
    Models,
    DeviceShadowKvModelTest,
    testing::Combine(
        testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
        testing::Values("shadowkv:rank=64,budget=128,outliers=2,local=8,v=bf16",
                        "shadowkv:rank=64,budget=128,outliers=2,local=8,vplace=host",
                        "shadowkv:rank=64,budget=0.25,outliers=0,local=64,chunk=1,sel=q2")),
    [](const auto& instance) { return "Case" + std::to_string(instance.index); });
INSTANTIATE_TEST_SUITE_P(
    Joint,
    DeviceShadowKvModelTest,
    testing::Combine(testing::Values("tiny-llama-needle-swiftkv-l6"),
                     testing::Values("shadowkv:rank=64,budget=128,outliers=2,local=8,joint=128")),
    [](const auto& instance) { return "Case" + std::to_string(instance.index); });

}  // namespace
}  // namespace baton::model
