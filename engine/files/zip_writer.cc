// A zip file of uncompressed, aligned entries.
#include "engine/files/zip_writer.h"

#include <bit>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "engine/files/crc32.h"

namespace dsat::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryRecord = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr uint16_t kVersion = 20, kVersion64 = 45;  // That a reader must know: 2.0, 4.5.
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kStored = 0;
constexpr uint16_t kMidnight = 0, kFirstOf1980 = 0x21;  // No clock: equal content, equal files.
constexpr uint16_t kZip64Extra = 0x0001, kPaddingExtra = 0x4246;  // "FB", as PyTorch pads.
constexpr int64_t kLocalHeaderBytes = 30, kCrcOffset = 14;
constexpr uint32_t kSeeZip64 = 0xFFFFFFFF;
constexpr uint16_t kSeeZip64Count = 0xFFFF;

// Numbers and text one after another.
class Record {
 public:
  template <typename T>
  Record& Put(T value) {
    static_assert(std::is_unsigned_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Record& Text(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

uint64_t U64(int64_t value) {
  return static_cast<uint64_t>(value);
}
uint16_t Length(const std::string& text) {
  DSAT_CHECK(text.size() < 0xFFFF);
  return static_cast<uint16_t>(text.size());
}

// The extra field of a local header: sizes if they need 8 bytes, then padding so that what follows
// `offset` and the field is aligned.
std::string LocalExtra(int64_t offset, uint64_t bytes, bool zip64) {
  Record extra;
  if (zip64) extra.Put(kZip64Extra).Put(uint16_t{16}).Put(bytes).Put(bytes);
  const int64_t end = offset + static_cast<int64_t>(extra.text().size()) + 4;
  const int64_t padding =
      (ZipWriter::kAlignBytes - end % ZipWriter::kAlignBytes) % ZipWriter::kAlignBytes;
  extra.Put(kPaddingExtra).Put(static_cast<uint16_t>(padding));
  return extra.Text(std::string(static_cast<size_t>(padding), 'Z')).text();
}

}  // namespace

ZipWriter::ZipWriter(const std::string& path, int64_t zip64_from)
    : zip64_from_(zip64_from), file_(path) {}

void ZipWriter::Add(const std::string& name, std::string_view data) {
  Begin(name, static_cast<int64_t>(data.size()));
  Append(data);
  End();
}

void ZipWriter::Begin(const std::string& name, int64_t bytes) {
  const int64_t offset = file_.bytes();
  const bool zip64 = bytes >= zip64_from_;
  const uint32_t size = zip64 ? kSeeZip64 : static_cast<uint32_t>(bytes);
  const std::string extra =
      LocalExtra(offset + kLocalHeaderBytes + Length(name), U64(bytes), zip64);
  Record header;
  header.Put(kLocalHeader).Put(zip64 ? kVersion64 : kVersion).Put(kUtf8Names).Put(kStored);
  header.Put(kMidnight).Put(kFirstOf1980).Put(uint32_t{0});  // The sum comes with End().
  header.Put(size).Put(size).Put(Length(name)).Put(Length(extra)).Text(name).Text(extra);
  file_.Write(header.text());
  entries_.push_back({name, bytes, offset, 0});
  data_offset_ = file_.bytes();
}

void ZipWriter::Append(std::string_view data) {
  entries_.back().crc = Crc32(entries_.back().crc, data);
  file_.Write(data);
}

void ZipWriter::End() {
  const Entry& entry = entries_.back();
  DSAT_CHECK(file_.bytes() - data_offset_ == entry.bytes, "{}", entry.name);
  file_.Patch(entry.offset + kCrcOffset, Record().Put(entry.crc).text());
}

std::string ZipWriter::DirectoryRecord(const Entry& entry) const {
  const bool large = entry.bytes >= zip64_from_, far = entry.offset >= zip64_from_;
  Record numbers;
  if (large) numbers.Put(U64(entry.bytes)).Put(U64(entry.bytes));
  if (far) numbers.Put(U64(entry.offset));
  Record extra;
  if (large || far) extra.Put(kZip64Extra).Put(Length(numbers.text())).Text(numbers.text());
  const uint32_t size = large ? kSeeZip64 : static_cast<uint32_t>(entry.bytes);
  const uint16_t version = large || far ? kVersion64 : kVersion;
  Record record;
  record.Put(kDirectoryRecord).Put(version).Put(version).Put(kUtf8Names).Put(kStored);
  record.Put(kMidnight).Put(kFirstOf1980).Put(entry.crc).Put(size).Put(size);
  record.Put(Length(entry.name)).Put(Length(extra.text()));
  record.Put(uint16_t{0}).Put(uint16_t{0}).Put(uint16_t{0}).Put(uint32_t{0});  // No comment, disks.
  record.Put(far ? kSeeZip64 : static_cast<uint32_t>(entry.offset));
  return record.Text(entry.name).Text(extra.text()).text();
}

void ZipWriter::Commit() {
  const int64_t begin = file_.bytes();
  for (const Entry& entry : entries_)
    file_.Write(DirectoryRecord(entry));
  const int64_t end = file_.bytes();
  const bool many = entries_.size() >= kSeeZip64Count;
  const bool zip64 = many || end >= zip64_from_;
  Record tail;
  if (zip64) {
    const uint64_t count = entries_.size();
    tail.Put(kEnd64).Put(uint64_t{44}).Put(kVersion64).Put(kVersion64);
    tail.Put(uint32_t{0}).Put(uint32_t{0}).Put(count).Put(count);
    tail.Put(U64(end - begin)).Put(U64(begin));
    tail.Put(kEnd64Locator).Put(uint32_t{0}).Put(U64(end)).Put(uint32_t{1});
  }
  const uint16_t count = many ? kSeeZip64Count : static_cast<uint16_t>(entries_.size());
  tail.Put(kEnd).Put(uint16_t{0}).Put(uint16_t{0}).Put(count).Put(count);
  tail.Put(zip64 ? kSeeZip64 : static_cast<uint32_t>(end - begin));
  tail.Put(zip64 ? kSeeZip64 : static_cast<uint32_t>(begin)).Put(uint16_t{0});
  file_.Write(tail.text());
  file_.Commit();
}

}  // namespace dsat::engine
