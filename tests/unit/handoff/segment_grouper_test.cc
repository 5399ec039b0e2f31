#include "common/handoff/send/segment_grouper.h"

#include <span>
#include <vector>

#include "gtest/gtest.h"

#include "common/engine/kv_sink.h"
#include "common/kv/manifest/layout.h"

namespace baton::handoff {
namespace {

class SegmentGrouperTest : public testing::Test {
 protected:
  engine::ReadyKv Ready(int32_t layer, int32_t layers, int32_t page, int32_t pages) const {
    engine::ReadyKv ready;
    ready.layer_begin = layer;
    ready.layer_end = layer + layers;
    ready.page_begin = page;
    ready.page_count = pages;
    ready.memory.assign(static_cast<size_t>(layers) * static_cast<size_t>(pages), std::span(page_));
    return ready;
  }

  const std::vector<std::byte> page_ = std::vector<std::byte>(100);
  const kv::WindowGeometry geometry_{
      .layers = 8, .kv_heads = 1, .page_bytes = 100, .prompt_tokens = 40, .pages_per_layer = 10};
};

TEST_F(SegmentGrouperTest, LayersAreGroupedUntilTheSegmentIsLarge) {
  SegmentGrouper grouper(geometry_);  // a layer of the prefill chunk has 1000 bytes
  EXPECT_TRUE(grouper.Add(Ready(0, 1, 0, 10), 2500)->empty());
  EXPECT_TRUE(grouper.Add(Ready(1, 1, 0, 10), 2500)->empty());
  const auto segments = *grouper.Add(Ready(2, 1, 0, 10), 2500);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].layer_begin, 0);
  EXPECT_EQ(segments[0].layer_count, 3);
  EXPECT_EQ(segments[0].payload_bytes(), 3000);
}

TEST_F(SegmentGrouperTest, LastLayerEndsTheSegmentOfItsPrefillChunk) {
  SegmentGrouper grouper(geometry_);
  EXPECT_EQ(grouper.Add(Ready(0, 6, 0, 10), 2500)->size(), 1u);
  EXPECT_FALSE(grouper.has_rest());
  EXPECT_TRUE(grouper.Add(Ready(6, 1, 0, 10), 2500)->empty());
  EXPECT_TRUE(grouper.has_rest());
  EXPECT_EQ(grouper.Add(Ready(7, 1, 0, 10), 2500)->size(), 1u);
  EXPECT_FALSE(grouper.has_rest());
  EXPECT_FALSE(grouper.Flush().has_value());
}

TEST_F(SegmentGrouperTest, WhetherEncodedLayersAreLeftIsKnown) {
  SegmentGrouper grouper(geometry_);
  EXPECT_FALSE(grouper.rest_is_encoded());
  EXPECT_TRUE(grouper.Add(Ready(0, 1, 0, 5), 2500)->empty());
  EXPECT_FALSE(grouper.rest_is_encoded());
  engine::ReadyKv ready = Ready(0, 1, 5, 5);
  ready.encoded = true;
  EXPECT_EQ(grouper.Add(ready, 2500)->size(), 1u);
  EXPECT_TRUE(grouper.rest_is_encoded());
  EXPECT_TRUE(grouper.Flush()->encoded);
  EXPECT_FALSE(grouper.rest_is_encoded());
}

TEST_F(SegmentGrouperTest, SmallPrefillChunkShipsEveryCall) {
  SegmentGrouper grouper(geometry_);
  EXPECT_EQ(grouper.Add(Ready(0, 1, 0, 3), 2500)->size(), 1u);
  EXPECT_EQ(grouper.Add(Ready(1, 2, 0, 3), 2500)->size(), 1u);
}

TEST_F(SegmentGrouperTest, OtherPagesBeginANewSegment) {
  SegmentGrouper grouper(geometry_);
  EXPECT_TRUE(grouper.Add(Ready(0, 1, 0, 5), 2000)->empty());
  const auto segments = *grouper.Add(Ready(0, 1, 5, 5), 2000);
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_EQ(segments[0].page_begin, 0);
  EXPECT_EQ(grouper.Flush()->page_begin, 5);
}

TEST_F(SegmentGrouperTest, WhatDoesNotFitTheReservationIsAnError) {
  SegmentGrouper grouper(geometry_);
  EXPECT_FALSE(grouper.Add(Ready(7, 2, 0, 1), 2500).ok());
  EXPECT_FALSE(grouper.Add(Ready(0, 1, 9, 2), 2500).ok());
  engine::ReadyKv short_of_pages = Ready(0, 1, 0, 2);
  short_of_pages.memory.pop_back();
  EXPECT_FALSE(grouper.Add(short_of_pages, 2500).ok());
}

}  // namespace
}  // namespace baton::handoff
