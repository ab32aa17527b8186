#include "serve/notify.h"

#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int notify_open(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (!n || n >= sizeof to.sun_path)
        return -1;
    memcpy(to.sun_path, path, n);
    if (to.sun_path[0] == '@') /* an abstract socket */
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        !connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

void notify_say(int fd, const char *state)
{
    if (fd < 0)
        return;
    ssize_t sent = send(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* without a listener there is no harm */
}
