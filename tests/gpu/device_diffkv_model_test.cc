// A model on the device whose sequence is in KV format `diffkv`: the prompt is scored, encoded and
// decoded there.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/gpu/support/encoded_model_run.h"

namespace baton::model {
namespace {

// Rounding activations to bf16 between ops, which the host does not, moves logits by this much of
// the largest; and by more in a step, for a token that is near a threshold gets another precision.
constexpr LogitTolerances kTolerances = {.mean = 0.04, .step = 0.2};

class DeviceDiffKvModelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
};

TEST_P(DeviceDiffKvModelTest, LogitsAreThoseOfTheHost) {
  ExpectLogitsOfTheHost(std::get<0>(GetParam()), std::get<1>(GetParam()), kTolerances);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    DeviceDiffKvModelTest,
    testing::Combine(testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("diffkv", "diffkv:ah=2,al=0.5,policy=paper,w=16,every=4")),
    [](const auto& instance) { return "Case" + std::to_string(instance.index); });

}  // namespace
}  // namespace baton::model
