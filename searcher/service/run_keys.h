// The keys of one run, with which a server and its clients on other hosts know each other by TLS.
#ifndef DSAT_SEARCHER_SERVICE_RUN_KEYS_H_
#define DSAT_SEARCHER_SERVICE_RUN_KEYS_H_

#include <string>

namespace dsat {

// Each is a text of PEM blocks: a private key, its certificate for kKeyName (proto/client.h), and
// the certificate of the run's authority, whose own key nobody keeps. They do not expire, because
// they serve one run, whatever the clocks of its hosts say.
struct RunKeys {
  std::string server;
  std::string client;  // Cannot act as the server.
};

// Draws new keys. Throws kInternal if OpenSSL refuses.
RunKeys MakeRunKeys();

}  // namespace dsat

#endif  // DSAT_SEARCHER_SERVICE_RUN_KEYS_H_
