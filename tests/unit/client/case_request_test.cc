#include "services/client/case_request.h"

#include "gtest/gtest.h"

namespace baton::client {
namespace {

TEST(CaseRequestTest, IsGreedyWithTheCasesLimit) {
  eval::EvalCase eval_case;
  eval_case.messages = {{{"role", "user"}, {"content", "a"}},
                        {{"role", "assistant"}, {"content", "b"}},
                        {{"role", "user"}, {"content", "c"}}};
  eval_case.max_new_tokens = 24;
  inference::v1::GenerateRequest request;
  SetCase(eval_case, &request);
  ASSERT_EQ(request.chat().messages_size(), 3);
  EXPECT_EQ(request.chat().messages(1).role(), "assistant");
  EXPECT_EQ(request.chat().messages(2).content(), "c");
  ASSERT_TRUE(request.sampling().has_temperature());
  EXPECT_EQ(request.sampling().temperature(), 0.0f);
  EXPECT_EQ(request.stopping().max_tokens(), 24u);
}

}  // namespace
}  // namespace baton::client
