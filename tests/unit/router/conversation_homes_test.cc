#include "services/router/workers/conversation_homes.h"

#include <optional>

#include "gtest/gtest.h"

namespace baton::router {
namespace {

TEST(ConversationHomesTest, KnowsTheLastWorkerOfAConversation) {
  ConversationHomes homes;
  EXPECT_EQ(homes.Find("a"), std::nullopt);
  homes.Set("a", 3);
  homes.Set("b", 4);
  EXPECT_EQ(homes.Find("a"), 3u);
  homes.Set("a", 5);
  EXPECT_EQ(homes.Find("a"), 5u);
  EXPECT_EQ(homes.Find("b"), 4u);
}

TEST(ConversationHomesTest, NoConversationHasNoHome) {
  ConversationHomes homes;
  homes.Set("", 3);
  EXPECT_EQ(homes.Find(""), std::nullopt);
}

TEST(ConversationHomesTest, ForgetsWhoWasSilentLongest) {
  ConversationHomes homes(/*max_conversations=*/2);
  homes.Set("a", 1);
  homes.Set("b", 2);
  homes.Set("a", 1);
  homes.Set("c", 3);
  EXPECT_EQ(homes.Find("a"), 1u);
  EXPECT_EQ(homes.Find("b"), std::nullopt);
  EXPECT_EQ(homes.Find("c"), 3u);
}

}  // namespace
}  // namespace baton::router
