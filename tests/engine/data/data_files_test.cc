// Token files, images and validation data: formats byte by byte, parts that do not overlap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/core/device_kind.h"
#include "engine/data/dataset.h"
#include "engine/data/model_fit.h"
#include "engine/model/models.h"
#include "engine/runtime/executor/batch_loader.h"
#include "tests/base/error_code.h"
#include "tests/engine/data/data_folder.h"

namespace dsat::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

using DataFilesTest = DataFolderTest;

std::vector<int32_t> TokensOf(const Dataset& dataset, int64_t index, int64_t T) {
  std::vector<int32_t> tokens(static_cast<size_t>(T)), targets(static_cast<size_t>(T));
  dataset.Sample(index, T, tokens.data(), targets.data());
  tokens.push_back(targets.back());
  return tokens;
}

// ---- Token files. ----

TEST_F(DataFilesTest, TokensAreReadFromBothHeadersAndNone) {
  Write("nano.bin", Raw<uint16_t>({1, 50000, 3, 4}));
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 4;
  Write("llmc.bin", Raw(header) + Raw<uint16_t>({1, 50000, 3, 4}));
  header[0] = 20240801;
  header[1] = 7;
  Write("llama.bin", Raw(header) + Raw<uint32_t>({1, 128000, 3, 4}));
  for (const char* file : {"nano.bin", "llmc.bin"}) {
    const auto dataset = Open({{"type", "tokens"}, {"path", file}});
    EXPECT_THAT(TokensOf(*dataset, 0, 3), ElementsAre(1, 50000, 3, 4));
    EXPECT_EQ(dataset->vocab_size(), 50257);
  }
  const auto llama = Open({{"type", "tokens"}, {"path", "llama.bin"}});
  EXPECT_THAT(TokensOf(*llama, 0, 3), ElementsAre(1, 128000, 3, 4));
  EXPECT_EQ(llama->vocab_size(), 128256);
}

TEST_F(DataFilesTest, TokenFilesFollowOneAnother) {
  Write("a.bin", Raw<uint16_t>({1, 2}));
  Write("b.bin", Raw<uint16_t>({3}));
  Write("c.bin", Raw<uint16_t>({4, 5}));
  const auto dataset = Open({{"type", "tokens"}, {"path", "*.bin"}});
  EXPECT_THAT(TokensOf(*dataset, 0, 4), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(DataFilesTest, MistakesInTokenFilesAreNamed) {
  Write("odd.bin", "abc");
  ExpectRefused({{"type", "tokens"}, {"path", "odd.bin"}},
                "odd.bin: 3 bytes are not whole tokens of 2 bytes; \"dtype\" tells");
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 9;
  Write("short.bin", Raw(header) + "12345678");
  ExpectRefused(
      {{"type", "tokens"}, {"path", "short.bin"}},
      "short.bin: 8 bytes follow the header, which says 9 tokens of 2 bytes; expected the "
      "whole file");
  Write("big.bin", Raw<uint16_t>({1, 600, 3}));
  const auto dataset = Open({{"type", "tokens"}, {"path", "big.bin"}, {"vocab_size", 512}});
  ExpectRefused(
      [&] { (void)TokensOf(*dataset, 0, 2); },
      "big.bin: token 1 is 600; expected less than vocab_size, 512: raise those of the data");
}

// ---- Validation. ----

TEST_F(DataFilesTest, SplitHoldsTheEndOut) {
  std::string text(100, 'a');
  text.replace(80, 20, "0123456789ABCDEFGHIJ");
  Write("a.txt", text);
  const Json json = {{"type", "text"}, {"path", "a.txt"}, {"validation", {{"split", 0.2}}}};
  const auto train = Open(json);
  EXPECT_EQ(train->NumSamples(4), Dataset::kEndless);
  for (int64_t index = 0; index < 300; ++index)
    EXPECT_THAT(TokensOf(*train, index, 4), testing::Each('a'));
  const auto validation = OpenValidation(json);
  EXPECT_EQ(validation->NumSamples(4), 4);  // There are 20 bytes, with a target after each.
  EXPECT_EQ(validation->NumSamples(19), 1);
  EXPECT_THAT(TokensOf(*validation, 0, 4), ElementsAre('0', '1', '2', '3', '4'));
  EXPECT_THAT(TokensOf(*validation, 3, 4), ElementsAre('C', 'D', 'E', 'F', 'G'));
}

TEST_F(DataFilesTest, ValidationInheritsWhatItDoesNotSay) {
  Write("train.bin", Raw<uint16_t>({1, 2, 3, 4}));
  Write("val.bin", Raw<uint16_t>({5, 6, 7, 8, 9}));
  const auto validation = OpenValidation({{"type", "tokens"},
                                          {"path", "train.bin"},
                                          {"vocab_size", 10},
                                          {"validation", {{"path", "val.bin"}}}});
  EXPECT_EQ(validation->vocab_size(), 10);
  EXPECT_EQ(validation->NumSamples(2), 2);
  EXPECT_THAT(TokensOf(*validation, 1, 2), ElementsAre(7, 8, 9));
  EXPECT_EQ(OpenValidation({{"type", "synthetic"}}), nullptr);
}

TEST_F(DataFilesTest, SyntheticValidationIsOtherDrawsOfTheSame) {
  const Json json = {{"type", "synthetic"}, {"validation", {{"samples", 7}}}};
  const auto train = Open(json);
  const auto validation = OpenValidation(json);
  EXPECT_EQ(validation->NumSamples(8), 7);
  for (int64_t index = 0; index < 7; ++index)
    EXPECT_NE(TokensOf(*train, index, 8), TokensOf(*validation, index, 8));
}

TEST_F(DataFilesTest, MistakesInValidationAreNamed) {
  Write("a.txt", "0123456789");
  const auto text = [](const Json& validation) {
    return Json{{"type", "text"}, {"path", "a.txt"}, {"validation", validation}};
  };
  ExpectRefused(text(Json::object()), "/data/validation is {}; expected either other files or");
  ExpectRefused(text({{"split", 0.5}, {"path", "a.txt"}}), "expected either other files or");
  for (const Json& split : {Json(0), Json(1), Json(-1), Json("a half")})
    ExpectRefused(text({{"split", split}}), "/data/validation/split is " + split.dump() +
                                                "; expected a part of the data, as 0.05");
  ExpectRefused(text({{"split", 0.01}}), "/data/validation/split is 0.01; of 10 it holds out 0");
  ExpectRefused(text({{"split", 0.1}}),
                "a.txt: the part for validation with /data/validation/split 0.1: 1 bytes of text; "
                "expected at least 2");
  ExpectRefused(text({{"split", 0.9}}),
                "a.txt: the part for training with /data/validation/split 0.9: 1 bytes of text; "
                "expected at least 2");
  ExpectRefused(text({{"split", 0.5}, {"seq_len", 2}}), "/data/validation/seq_len: validation has");
  ExpectRefused(text({{"path", "b.txt"}}), "b.txt: no such file");
  ExpectRefused(text({{"paths", "b.txt"}, {"split", 0.5}}), "/data/validation/paths: unknown key");
  ExpectRefused({{"type", "synthetic"}, {"validation", {{"split", 0.1}}}}, "give \"samples\"");
}

// ---- Images. ----

// A record whose byte at plane p and pixel i is (first + 100 p + i) % 256.
std::string CifarRecord(int label, int first) {
  std::string record(1, static_cast<char>(label));
  for (int p = 0; p < 3; ++p) {
    for (int i = 0; i < 1024; ++i)
      record.push_back(static_cast<char>((first + 100 * p + i) % 256));
  }
  return record;
}

TEST_F(DataFilesTest, CifarPlanesBecomeChannels) {
  Write("batch.bin", CifarRecord(7, 5));
  const auto dataset = Open({{"type", "cifar10"}, {"path", "batch.bin"}});
  EXPECT_EQ(dataset->image(), (ImageShape{32, 32, 3}));
  EXPECT_EQ(dataset->vocab_size(), 10);
  std::vector<float> pixels(32 * 32 * 3);
  int32_t label = -1;
  dataset->Image(0, pixels.data(), &label);
  EXPECT_EQ(label, 7);
  for (size_t i = 0; i < 1024; ++i) {
    for (size_t p = 0; p < 3; ++p) {
      const auto byte = static_cast<double>((5 + 100 * p + i) % 256);
      ASSERT_NEAR(pixels[3 * i + p], byte / 127.5 - 1, 1e-6);
    }
  }
}

TEST_F(DataFilesTest, EveryEpochHasEveryImageOnceInANewOrder) {
  std::string records;
  for (int i = 0; i < 10; ++i)
    records += CifarRecord(i, 0);
  Write("batch.bin", records);
  const Json json = {{"type", "cifar10"}, {"path", "batch.bin"}, {"validation", {{"split", 0.3}}}};
  const auto labels = [](const Dataset& dataset, int64_t begin, int64_t count) {
    std::vector<float> pixels(3072);
    std::vector<int32_t> labels(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      dataset.Image(begin + i, pixels.data(), &labels[static_cast<size_t>(i)]);
    return labels;
  };
  const auto train = Open(json);
  EXPECT_THAT(labels(*train, 0, 7), testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(labels(*train, 7, 7), testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_NE(labels(*train, 0, 7), labels(*train, 7, 7));
  EXPECT_NE(labels(*train, 0, 7), labels(*Open(json, 2), 0, 7));
  const auto validation = OpenValidation(json);
  EXPECT_EQ(validation->NumSamples(1), 3);
  EXPECT_THAT(labels(*validation, 0, 3), ElementsAre(7, 8, 9));
}

TEST_F(DataFilesTest, IdxFilesAreReadAsMnistHasThem) {
  Write("images", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03", 16) +
                      std::string("\x00\x33\x66\x99\xcc\xff\x01\x02\x03\x04\x05\x06", 12));
  Write("labels", std::string("\0\0\x08\x01\0\0\0\x02\x09\x04", 10));
  const Json json = {{"type", "idx"}, {"images", "images"}, {"labels", "labels"}};
  Json validation = json;
  validation["validation"] = {{"images", "images"}, {"labels", "labels"}};
  const auto dataset = OpenValidation(validation);
  EXPECT_EQ(dataset->image(), (ImageShape{2, 3, 1}));
  EXPECT_EQ(dataset->NumSamples(1), 2);
  std::vector<float> pixels(6);
  int32_t label = -1;
  dataset->Image(0, pixels.data(), &label);
  EXPECT_EQ(label, 9);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(pixels[i], 0.4 * static_cast<double>(i) - 1, 1e-6);
  dataset->Image(1, pixels.data(), &label);
  EXPECT_EQ(label, 4);
  EXPECT_NEAR(pixels[5], 6 / 127.5 - 1, 1e-6);
  const auto few =
      Open({{"type", "idx"}, {"images", "images"}, {"labels", "labels"}, {"classes", 5}});
  ExpectRefused(
      [&] {
        for (int64_t i = 0; i < 2; ++i)
          few->Image(i, pixels.data(), &label);
      },
      "labels: label 0 is 9; expected less than classes, 5: raise those of the data");
}

TEST_F(DataFilesTest, MistakesInImageFilesAreNamed) {
  Write("short.bin", CifarRecord(1, 0) + "x");
  ExpectRefused({{"type", "cifar10"}, {"path", "short.bin"}},
                "short.bin: 3074 bytes; expected records of 3073");
  Write("gzip", "\x1f\x8b\x08\x03");
  Write("labels", std::string("\0\0\x08\x01\0\0\0\x01\x09", 9));
  ExpectRefused({{"type", "idx"}, {"images", "gzip"}, {"labels", "labels"}},
                "gzip: expected an IDX file of unsigned bytes with 3 dimensions, uncompressed");
  Write("images", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01\x01\x02", 18));
  ExpectRefused({{"type", "idx"}, {"images", "images"}, {"labels", "labels"}}, "has 2 images");
  Write("cut", std::string("\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01\x01", 17));
  ExpectRefused({{"type", "idx"}, {"images", "cut"}, {"labels", "labels"}},
                "cut: 1 bytes of data; its header says 2");
  // A product of 2^64 bytes, which is 0 in 64 bits.
  Write("huge", std::string("\0\0\x08\x04\x80\0\0\0\x80\0\0\0\0\0\0\x04\0\0\0\x01", 20));
  ExpectRefused({{"type", "idx"}, {"images", "huge"}, {"labels", "labels"}}, "huge: its header");
  ExpectRefused({{"type", "idx"}, {"images", "none"}, {"labels", "labels"}}, "none");
  ExpectRefused({{"type", "idx"}, {"labels", "labels"}}, "/data/images is missing");
}

TEST(SyntheticImagesTest, ImagesOfAClassAreAlikeAndOthersAreNot) {
  const auto dataset = OpenDataset(
      {{"type", "synthetic_images"}, {"image_size", 16}, {"classes", 3}}, "", 1, "/data");
  const int64_t size = dataset->image().NumElems();
  ASSERT_EQ(size, 16 * 16 * 3);
  const auto other_seed = OpenDataset(
      {{"type", "synthetic_images"}, {"image_size", 16}, {"classes", 3}}, "", 2, "/data");
  // The mean image of each class, from both seeds: the patterns are the same.
  for (const Dataset* half : {dataset.get(), other_seed.get()}) {
    std::array<std::vector<double>, 3> means;
    std::array<double, 3> counts{};
    for (auto& mean : means)
      mean.assign(static_cast<size_t>(size), 0);
    std::vector<float> pixels(static_cast<size_t>(size));
    const auto correlation = [&](int32_t label) {
      double sum = 0;
      for (size_t i = 0; i < pixels.size(); ++i)
        sum += pixels[i] * means[static_cast<size_t>(label)][i];
      return sum;
    };
    int32_t label = 0;
    for (int64_t index = 0; index < 300; ++index) {
      dataset->Image(index, pixels.data(), &label);
      ASSERT_TRUE(label >= 0 && label < 3);
      ++counts[static_cast<size_t>(label)];
      for (size_t i = 0; i < pixels.size(); ++i) {
        EXPECT_LE(std::abs(pixels[i]), 1);
        means[static_cast<size_t>(label)][i] += pixels[i];
      }
    }
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(counts[c], 100, 30);
      for (double& value : means[c])
        value /= counts[c];
    }
    int right = 0;
    for (int64_t index = 1000; index < 1100; ++index) {
      half->Image(index, pixels.data(), &label);
      bool best = true;
      for (int32_t other = 0; other < 3; ++other)
        best = best && correlation(other) <= correlation(label);
      right += best ? 1 : 0;
    }
    EXPECT_GE(right, 99);
  }
}

TEST(ShuffleTest, IsAPermutationThatSeedAndEpochChange) {
  for (const int64_t size : {1, 2, 5, 64, 1000}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < size; ++i)
      seen.insert(Shuffled(i, size, 3, 0));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
  int same_epoch = 0, fixed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_epoch += Shuffled(i, 1000, 3, 0) == Shuffled(i, 1000, 3, 1) ? 1 : 0;
    fixed += Shuffled(i, 1000, 3, 0) == i ? 1 : 0;
  }
  EXPECT_LT(same_epoch, 12);  // About one in a thousand by chance.
  EXPECT_LT(fixed, 12);
}

// ---- Batches, and which model fits which data. ----

TEST(BatchLoaderTest, FillsImagesOfThisRanksRows) {
  const auto dataset =
      OpenDataset({{"type", "synthetic_images"}, {"image_size", 4}}, "", 1, "/data");
  Arena arena("memory", Arena::Kind::kReal, 0);
  const auto kernels = MakeCountingKernels(1);  // Nothing is taken to the device.
  BatchLoader loader(dataset.get(), arena, *kernels,
                     {.train_batch_size = 12, .micro_batch_size = 2, .accumulation_steps = 3}, 1, 1,
                     2, dataset->image());
  const Batch& batch = loader.Load(5 * 12, 2);
  EXPECT_EQ(batch.tokens, nullptr);
  EXPECT_EQ(batch.T, 1);
  std::vector<float> pixels(48);
  for (int64_t b = 0; b < 2; ++b) {
    int32_t label = 0;
    dataset->Image(5 * 12 + (2 * 2 + 1) * 2 + b, pixels.data(), &label);
    EXPECT_EQ(batch.targets[b], label);
    EXPECT_EQ(std::memcmp(batch.pixels + 48 * b, pixels.data(), 48 * sizeof(float)), 0);
  }
}

// The samples of a batch, by their numbers; sample 40 cannot be read.
class Numbered final : public Dataset {
 public:
  void Sample(int64_t index, int64_t, int32_t* tokens, int32_t* targets) const override {
    if (index == 40) Throw(ErrorCode::kInvalidArgument, "sample 40 is defective");
    tokens[0] = targets[0] = static_cast<int32_t>(index);
  }
  int64_t vocab_size() const override { return 1000; }
};

TEST(BatchLoaderTest, BatchesAreTheSameInAnyOrder) {
  const Numbered dataset;
  Arena arena("memory", Arena::Kind::kReal, 0);
  const auto kernels = MakeCountingKernels(1);
  BatchLoader loader(&dataset, arena, *kernels,
                     {.train_batch_size = 8, .micro_batch_size = 2, .accumulation_steps = 2}, 1, 1,
                     2);
  const auto load = [&](int64_t step, int64_t micro_batch) {
    const Batch& batch = loader.Load(8 * step, micro_batch);
    EXPECT_EQ(batch.tokens[0], 8 * step + 4 * micro_batch + 2);
    EXPECT_EQ(batch.targets[1], 8 * step + 4 * micro_batch + 3);
  };
  for (int64_t step = 0; step < 4; ++step) {
    load(step, 0);
    load(step, 1);
  }
  load(9, 1);
  load(9, 1);
  load(0, 0);
  load(0, 1);
}

TEST(BatchLoaderTest, ADefectiveSampleIsReportedWhenItsTurnComes) {
  const Numbered dataset;
  Arena arena("memory", Arena::Kind::kReal, 0);
  const auto kernels = MakeCountingKernels(1);
  BatchLoader loader(&dataset, arena, *kernels,
                     {.train_batch_size = 10, .micro_batch_size = 10, .accumulation_steps = 1}, 1,
                     0, 1);
  for (int64_t step = 0; step < 4; ++step)
    EXPECT_EQ(loader.Load(10 * step, 0).tokens[9], 10 * step + 9);
  EXPECT_THROW((void)loader.Load(40, 0), Error);
  EXPECT_EQ(loader.Load(50, 0).tokens[0], 50);
}

TEST(ModelFitTest, WhatDoesNotFitIsNamed) {
  const auto refused = [](const Json& model, const Json& data, const std::string& message) {
    const Error error = ErrorOf([&] {
      CheckModelFitsData(MakeModel(model, "/model"), *OpenDataset(data, "", 1, "/data"), "/model",
                         "/data");
    });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(message));
  };
  const Json mlp = {{"type", "mlp"}};
  const Json resnet = {{"type", "resnet"}};
  refused(mlp, {{"type", "synthetic_images"}},
          "/model: the model takes tokens, but /data has images");
  refused(resnet, {{"type", "synthetic"}}, "takes images of 32 x 32 x 3, but /data has tokens");
  refused(resnet, {{"type", "synthetic_images"}, {"channels", 1}}, "has images of 32 x 32 x 1");
  refused(resnet, {{"type", "synthetic_images"}, {"classes", 11}},
          "/model/classes is 10; expected at least the data's, 11");
  refused(mlp, {{"type", "synthetic"}, {"vocab_size", 300}},
          "/model/vocab_size is 256; expected at least the data's, 300");
  CheckModelFitsData(MakeModel(resnet, "/model"),
                     *OpenDataset({{"type", "synthetic_images"}}, "", 1, "/data"), "/model",
                     "/data");
}

TEST(ModelFitTest, AGpuRefusesHeadsThatAreTooWide) {
  const auto gpt2 = [](int64_t n_embd, int64_t n_head) {
    return MakeModel({{"type", "gpt2"}, {"n_layer", 1}, {"n_embd", n_embd}, {"n_head", n_head}},
                     "/model");
  };
  const Model wide = gpt2(514, 2);
  const Error error = ErrorOf([&] { CheckModelFitsDevice(wide, DeviceKind::kCuda, "/model"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnimplemented);
  EXPECT_THAT(error.what(), HasSubstr("/model: attention heads have 257 channels"));
  EXPECT_THAT(error.what(), HasSubstr("at most 256"));
  CheckModelFitsDevice(wide, DeviceKind::kCpu, "/model");
  CheckModelFitsDevice(gpt2(512, 2), DeviceKind::kCuda, "/model");
  CheckModelFitsDevice(MakeModel({{"type", "mlp"}}, "/model"), DeviceKind::kCuda, "/model");
  const Json llama = {{"type", "llama"},          {"hidden_size", 1032},
                      {"intermediate_size", 64},  {"num_hidden_layers", 1},
                      {"num_attention_heads", 4}, {"num_key_value_heads", 2}};
  EXPECT_THROW(CheckModelFitsDevice(MakeModel(llama, "/model"), DeviceKind::kCuda, "/model"),
               Error);
}

}  // namespace
}  // namespace dsat::engine
