#include "serve/notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_say(const char *path, const char *state)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, n);
    if (to.sun_path[0] == '@') /* a name without a file */
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    ssize_t sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    (void)sent; /* nobody listens: then nobody wanted to know */
    close(fd);
}
