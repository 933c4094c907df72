from twisted.internet import reactor
from twisted.web import resource, server

from prelude import HOST, PORT, blocks


class Echo(resource.Resource):
    isLeaf = True

    def render_GET(self, request):
        return next(blocks(1, int(request.args[b"size"][0])))

    def render_POST(self, request):
        return request.content.read()


reactor.listenTCP(PORT, server.Site(Echo()), interface=HOST)
reactor.run()
