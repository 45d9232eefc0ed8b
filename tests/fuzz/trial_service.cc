// Messages of the two gRPC services, as a server and its clients check them.
#include <google/protobuf/stubs/logging.h>

#include <string>

#include "dsat.pb.h"
#include "proto/wire.h"
#include "tests/fuzz/one_input.h"

namespace dsat::fuzz {
namespace {

// Reads a message with `check`, if the bytes are one.
template <typename Message, typename Check>
void Read(std::string_view bytes, const Check& check) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) check(message);
}

}  // namespace

// A number that selects the message; its bytes.
void TrialService(std::string_view input) {
  google::protobuf::SetLogHandler(nullptr);  // It logs every text that is not UTF-8.
  if (input.empty()) return;
  const std::string_view bytes = input.substr(1);
  switch (input[0] % 3) {
    case 0:
      return Read<v1::MeasuredRequest>(bytes, [](const v1::MeasuredRequest& request) {
        FromProto(request.attempt());
        ToProto(FromProto(request.result()));
        ProfileText(ProfileFromText(request.profile_json()));
      });
    case 1:
      return Read<v1::TellRequest>(bytes, [](const v1::TellRequest& request) {
        Parse<TrialState>(request.state());
        FromProto(request.measurement());
        ProfileFromText(request.profile_json());
      });
    default:
      return Read<v1::MeasuredReply>(
          bytes, [](const v1::MeasuredReply& reply) { FromProto(reply.next_point()); });
  }
}

}  // namespace dsat::fuzz
