class MlflowException(Exception):
    def __init__(self, message, status=500):
        super().__init__(message)
        self.message, self._status = message, status

    def get_http_status_code(self):
        return self._status
