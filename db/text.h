// Text as the database keeps it.
#ifndef DSAT_DB_TEXT_H_
#define DSAT_DB_TEXT_H_

#include <string>

#include "base/json.h"

namespace dsat {

// `text` with U+FFFD in place of what is no UTF-8: logs of user's programs may hold any bytes.
inline std::string ValidUtf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace))
      .get<std::string>();
}

}  // namespace dsat

#endif  // DSAT_DB_TEXT_H_
