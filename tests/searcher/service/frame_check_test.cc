// Limits of what a client may send, frame by frame.
#include "searcher/service/frame_check.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/searcher/service/raw_client.h"

namespace dsat {
namespace {

class FrameCheckTest : public testing::Test {
 protected:
  FrameCheckTest() { EXPECT_TRUE(check_.FromClient(kHttp2Preface)); }
  bool Client(int type, int flags, uint32_t stream, size_t size) {
    return check_.FromClient(Http2Frame(type, flags, stream, std::string(size, 'x')));
  }
  void Server(int type, int flags, uint32_t stream) {
    check_.FromServer(Http2Frame(type, flags, stream, "y"));
  }

  FrameCheck check_;
};

TEST_F(FrameCheckTest, ACallThatEndsLeavesNothing) {
  EXPECT_TRUE(Client(kSettings, 0, 0, 12));
  for (uint32_t call = 1; call < 2001; call += 2) {
    ASSERT_TRUE(Client(kHeaders, kEndHeaders, call, 300)) << call;
    ASSERT_TRUE(Client(kData, 0, call, 10000));
    EXPECT_EQ(check_.unfinished_bytes(), 10000);
    ASSERT_TRUE(Client(kData, kEndStream, call, 10000));
    EXPECT_EQ(check_.unfinished_bytes(), 0);
    Server(kHeaders, kEndStream, call);
  }
  EXPECT_EQ(check_.num_frames(), 3001);
  EXPECT_EQ(check_.num_answered(), 1000);
}

TEST_F(FrameCheckTest, BytesMayBeCutAnywhere) {
  const std::string bytes = std::string(kHttp2Preface) +
                            Http2Frame(kHeaders, kEndHeaders, 1, "abc") +
                            Http2Frame(kData, 0, 1, std::string(5000, 0));
  FrameCheck check;
  for (const char byte : bytes)
    ASSERT_TRUE(check.FromClient({&byte, 1}));
  EXPECT_EQ(check.unfinished_bytes(), 5000);
  check.FromServer(Http2Frame(kReset, 0, 1, "1234"));
  EXPECT_EQ(check.unfinished_bytes(), 0);
}

TEST_F(FrameCheckTest, WhatDoesNotBeginAsHttp2Ends) {
  EXPECT_FALSE(FrameCheck().FromClient("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_FALSE(FrameCheck().FromClient("PRI * HTTP/1"));
}

TEST_F(FrameCheckTest, AHeaderBlockHasALimitHoweverItIsCut) {
  EXPECT_TRUE(Client(kHeaders, 0, 1, 100));
  int accepted = 0;
  while (Client(kContinuation, 0, 1, 100))
    ++accepted;
  EXPECT_EQ(accepted, kMostHeaderBytes / 100 - 1);
}

TEST_F(FrameCheckTest, NothingComesBetweenTheFramesOfAHeaderBlock) {
  EXPECT_TRUE(Client(kHeaders, 0, 1, 100));
  EXPECT_FALSE(Client(kData, 0, 1, 100));
}

TEST_F(FrameCheckTest, AFrameHasALimit) {
  EXPECT_TRUE(Client(kData, 0, 1, kMostFrameBytes));
  EXPECT_FALSE(Client(kData, 0, 1, kMostFrameBytes + 1));
}

TEST_F(FrameCheckTest, OnlySoManyCallsAreOpenAtOnce) {
  uint32_t call = 1;
  for (int i = 0; i < kMostCallsOfConnection; ++i, call += 2)
    ASSERT_TRUE(Client(kHeaders, kEndHeaders | kEndStream, call, 10));
  EXPECT_TRUE(Client(kReset, 0, 1, 4));  // The client gives up one of them,
  Server(kData, kEndStream, 3);          // the server ends another.
  EXPECT_EQ(check_.num_resets(), 1);
  EXPECT_EQ(check_.num_open(), kMostCallsOfConnection - 2);
  EXPECT_TRUE(Client(kHeaders, kEndHeaders, call, 10));
  EXPECT_TRUE(Client(kHeaders, kEndHeaders, call + 2, 10));
  EXPECT_FALSE(Client(kHeaders, kEndHeaders, call + 4, 10));
}

}  // namespace
}  // namespace dsat
