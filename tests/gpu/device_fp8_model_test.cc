// A model on the device whose sequence is in KV format `fp8`: the prompt is coded and decoded
// there.
#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/support/encoded_model_run.h"

namespace baton::model {
namespace {

// Rounding activations to bf16 between ops, which the host does not, moves logits by this much of
// the largest; and by more in a step, for what is near the middle of two codes gets the other one.
constexpr LogitTolerances kTolerances = {.mean = 0.04, .step = 0.2};

class DeviceFp8ModelTest : public testing::TestWithParam<std::string> {};

TEST_P(DeviceFp8ModelTest, LogitsAreThoseOfTheHost) {
  ExpectLogitsOfTheHost(GetParam(), "fp8", kTolerances);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         DeviceFp8ModelTest,
                         testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& instance) {
                           return "Case" + std::to_string(instance.index);
                         });

}  // namespace
}  // namespace baton::model
